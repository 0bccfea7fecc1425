// An impostor device for a CPU build of torch: CPU memory and CPU kernels behind the dispatch key of CUDA, MPS or XPU.
//
// To torch's dispatcher, autograd and DistributedDataParallel the tensors are on the device that the environment
// variable IMPOSTOR names (cuda, mps or xpu). A kernel for it is the CPU's kernel, called with tensors that alias the
// same memory. So results are the CPU's, and what is wrong is what would be wrong on the device: tensors on two devices
// in one operation, a generator of the wrong device, float64 where there is none, more memory than the device has.
//
// Sections: state of the devices, memory, device guard, random numbers, hooks, kernels, registration.
// impostor.py loads this file's library, and replaces the Python functions of torch.cuda, torch.mps or torch.xpu.

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/EmptyTensor.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <ATen/detail/MPSHooksInterface.h>
#include <ATen/detail/XPUHooksInterface.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/ops/_local_scalar_dense.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/convolution.h>
#include <ATen/ops/convolution_backward.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/resize_native.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_as_complex_native.h>
#include <ATen/ops/view_as_real_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>

#include <array>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <string>

#define USE_C10D
#include <torch/csrc/distributed/c10d/reducer_timer.hpp>

using at::Tensor;
using c10::Device;
using c10::DeviceIndex;
using c10::DeviceType;
using c10::DispatchKey;
using c10::Stream;
using c10::StreamId;

namespace {

// ---- State of the devices

constexpr int NUM_DEVICES = 8;

DeviceType kind() {
  const char* name = std::getenv("IMPOSTOR");
  return c10::Device(name == nullptr ? "cuda" : name).type();
}

const DeviceType KIND = kind();
const DispatchKey KEY = c10::computeDispatchKey(std::nullopt, std::nullopt, Device(KIND));
const bool HAS_FLOAT64 = KIND != DeviceType::MPS;

struct Memory {
  std::atomic<int64_t> allocated{0}, peak{0}, capacity{16LL << 30}, num_allocations{0};
};
std::array<Memory, NUM_DEVICES> memory;

thread_local DeviceIndex current_device = 0;  // as in CUDA every thread has its own, which begins at 0
thread_local std::array<StreamId, NUM_DEVICES> current_stream{};
std::atomic<StreamId> num_streams{0};

DeviceIndex index_of(Device device) {
  return device.has_index() ? device.index() : current_device;
}

bool is_impostor(const Tensor& tensor) {
  return tensor.defined() && tensor.device().type() == KIND;
}

// ---- Memory

// What a DataPtr of the device owns: memory from malloc, or a CPU tensor's storage that a kernel returned.
struct Block {
  void* data;
  int64_t num_bytes;
  DeviceIndex device;
  c10::Storage adopted;
};

void release(void* context) {
  auto* block = static_cast<Block*>(context);
  memory[block->device].allocated -= block->num_bytes;
  if (!block->adopted) std::free(block->data);
  delete block;
}

c10::DataPtr account(void* data, int64_t num_bytes, DeviceIndex device, c10::Storage adopted = {}) {
  Memory& own = memory[device];
  int64_t allocated = own.allocated += num_bytes;
  if (allocated > own.capacity) {
    own.allocated -= num_bytes;
    if (!adopted) std::free(data);
    TORCH_CHECK_WITH(OutOfMemoryError, false, "CUDA out of memory. Tried to allocate ", num_bytes, " bytes (impostor)");
  }
  int64_t peak = own.peak;
  while (allocated > peak && !own.peak.compare_exchange_weak(peak, allocated)) {
  }
  own.num_allocations++;
  return {data, new Block{data, num_bytes, device, std::move(adopted)}, &release, Device(KIND, device)};
}

struct DeviceAllocator final : c10::Allocator {
  explicit DeviceAllocator(DeviceIndex device = -1) : device(device) {}
  c10::DataPtr allocate(size_t num_bytes) override {
    void* data = num_bytes == 0 ? nullptr : std::malloc(num_bytes);
    return account(data, static_cast<int64_t>(num_bytes), device < 0 ? current_device : device);
  }
  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }
  void copy_data(void* to, const void* from, size_t num_bytes) const override { std::memcpy(to, from, num_bytes); }
  DeviceIndex device;  // -1: the current one
};
DeviceAllocator on_current_device;

DeviceAllocator* allocator_of(std::optional<Device> device) {
  static std::array<DeviceAllocator, NUM_DEVICES> allocators = [] {
    std::array<DeviceAllocator, NUM_DEVICES> made;
    for (int i = 0; i < NUM_DEVICES; i++) made[i].device = static_cast<DeviceIndex>(i);
    return made;
  }();
  return &allocators[device ? index_of(*device) : current_device];
}

// Pinned memory is ordinary memory whose addresses are remembered.
struct PinnedAllocator final : c10::Allocator {
  static PinnedAllocator& get() {
    static auto* only = new PinnedAllocator();  // never destroyed: tensors may be freed at exit
    return *only;
  }
  c10::DataPtr allocate(size_t num_bytes) override {
    void* data = num_bytes == 0 ? nullptr : std::malloc(num_bytes);
    std::lock_guard<std::mutex> held(lock);
    if (data != nullptr) blocks[data] = num_bytes;
    return {data, data, &forget, Device(DeviceType::CPU)};
  }
  static void forget(void* data) {
    std::lock_guard<std::mutex> held(get().lock);
    get().blocks.erase(data);
    std::free(data);
  }
  bool contains(const void* data) {
    std::lock_guard<std::mutex> held(lock);
    auto next = blocks.upper_bound(const_cast<void*>(data));
    if (next == blocks.begin()) return false;
    auto [begin, size] = *std::prev(next);
    return static_cast<const char*>(data) < static_cast<char*>(begin) + size;
  }
  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }
  void copy_data(void* to, const void* from, size_t num_bytes) const override { std::memcpy(to, from, num_bytes); }
  std::mutex lock;
  std::map<void*, size_t> blocks;
};

// ---- Device guard

struct RecordedEvent {
  DeviceIndex device;
  StreamId stream;
};

struct ImpostorGuard final : c10::impl::DeviceGuardImplInterface {
  DeviceType type() const override { return KIND; }
  Device exchangeDevice(Device device) const override {
    Device before = getDevice();
    uncheckedSetDevice(device);
    return before;
  }
  Device getDevice() const override { return Device(KIND, current_device); }
  void setDevice(Device device) const override { uncheckedSetDevice(device); }
  void uncheckedSetDevice(Device device) const noexcept override { current_device = index_of(device); }
  DeviceIndex deviceCount() const noexcept override { return KIND == DeviceType::MPS ? 1 : NUM_DEVICES; }

  Stream make_stream(DeviceIndex device, StreamId id) const { return Stream(Stream::UNSAFE, Device(KIND, device), id); }
  Stream getStream(Device device) const override {
    return make_stream(index_of(device), current_stream[index_of(device)]);
  }
  Stream getDefaultStream(Device device) const override { return make_stream(index_of(device), 0); }
  Stream getNewStream(Device device, int) const override { return make_stream(index_of(device), ++num_streams); }
  Stream getStreamFromGlobalPool(Device device, bool) const override { return getNewStream(device, 0); }
  Stream exchangeStream(Stream stream) const override {
    Stream before = getStream(stream.device());
    current_stream[stream.device_index()] = stream.id();
    return before;
  }

  // Every operation is complete when it returns, so events have occurred and nothing needs to wait.
  void record(void** event, const Stream& stream, const DeviceIndex, const c10::EventFlag) const override {
    if (*event == nullptr) *event = new RecordedEvent();
    *static_cast<RecordedEvent*>(*event) = {stream.device_index(), stream.id()};
  }
  void destroyEvent(void* event, const DeviceIndex) const noexcept override {
    delete static_cast<RecordedEvent*>(event);
  }
  void block(void*, const Stream&) const override {}
  bool queryEvent(void*) const override { return true; }
  bool queryStream(const Stream&) const override { return true; }
  void synchronizeStream(const Stream&) const override {}
  void synchronizeEvent(void*) const override {}
  void synchronizeDevice(const DeviceIndex) const override {}
  void recordDataPtrOnStream(const c10::DataPtr&, const Stream&) const override {}
};

// ---- Random numbers

// A generator of the device. Its numbers are those of the CPU generator `host`, which the kernels get.
struct ImpostorGenerator final : c10::GeneratorImpl {
  ImpostorGenerator(DeviceIndex device, at::Generator host)
      : GeneratorImpl(Device(KIND, device), c10::DispatchKeySet(KEY)), host(std::move(host)) {}
  void set_current_seed(uint64_t seed) override { host.set_current_seed(seed); }
  void set_offset(uint64_t offset) override { host.set_offset(offset); }
  uint64_t get_offset() const override { return host.get_offset(); }
  uint64_t current_seed() const override { return host.current_seed(); }
  uint64_t seed() override { return const_cast<at::Generator&>(host).seed(); }
  void set_state(const c10::TensorImpl& state) override { host.unsafeGetGeneratorImpl()->set_state(state); }
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override { return host.unsafeGetGeneratorImpl()->get_state(); }
  GeneratorImpl* clone_impl() const override { return new ImpostorGenerator(device().index(), host.clone()); }
  at::Generator host;
};

at::Generator new_generator(DeviceIndex device) {
  return at::Generator(c10::make_intrusive<ImpostorGenerator>(device, at::detail::createCPUGenerator()));
}

at::Generator& default_generator(DeviceIndex device) {
  static std::array<at::Generator, NUM_DEVICES> generators = [] {
    std::array<at::Generator, NUM_DEVICES> made;
    for (int i = 0; i < NUM_DEVICES; i++) made[i] = new_generator(static_cast<DeviceIndex>(i));
    return made;
  }();
  return generators[device < 0 ? current_device : device];
}

const at::Generator& host_generator(const at::Generator& generator) {
  TORCH_CHECK(generator.device().type() == KIND, "Expected a '", KIND, "' device type for generator but found '",
              generator.device().type(), "'");
  return static_cast<ImpostorGenerator*>(generator.unsafeGetGeneratorImpl())->host;
}

// Python can only ask for a new generator: it then gets the default one of this device.
std::atomic<int> next_is_default{-1};

}  // namespace

// ---- Hooks: what torch asks about a device outside the dispatcher. The names of the classes are given by torch.

namespace at {

template <class Interface, DeviceType TYPE>
struct ImpostorHooks : Interface {
  void init() const override {}
  bool isBuilt() const override { return KIND == TYPE; }
  bool isAvailable() const override { return KIND == TYPE; }
  bool hasPrimaryContext(DeviceIndex) const override { return true; }
  DeviceIndex deviceCount() const override { return KIND == TYPE ? ImpostorGuard().deviceCount() : 0; }
  DeviceIndex getCurrentDevice() const override { return current_device; }
  void setCurrentDevice(DeviceIndex device) const override { current_device = device; }
  DeviceIndex exchangeDevice(DeviceIndex device) const override { return std::exchange(current_device, device); }
  DeviceIndex maybeExchangeDevice(DeviceIndex device) const override { return std::exchange(current_device, device); }
  Allocator* getPinnedMemoryAllocator() const override { return &PinnedAllocator::get(); }
  bool isPinnedPtr(const void* data) const override { return PinnedAllocator::get().contains(data); }
  Device getDeviceFromPtr(void*) const override { return Device(KIND, current_device); }
  const Generator& getDefaultGenerator(DeviceIndex device) const override { return default_generator(device); }
  Generator getNewGenerator(DeviceIndex device) const override {
    int wanted = next_is_default.exchange(-1);
    return wanted >= 0 ? default_generator(static_cast<DeviceIndex>(wanted))
                       : new_generator(device < 0 ? current_device : device);
  }
};

struct CUDAHooks final : ImpostorHooks<CUDAHooksInterface, DeviceType::CUDA> {
  explicit CUDAHooks(CUDAHooksArgs) {}
  bool hasCUDA() const override { return KIND == DeviceType::CUDA; }
  int getNumGPUs() const override { return deviceCount(); }
  DeviceIndex current_device() const override { return ::current_device; }
  Allocator* getCUDADeviceAllocator() const override { return &on_current_device; }
  void deviceSynchronize(DeviceIndex) const override {}
};
struct MPSHooks final : ImpostorHooks<MPSHooksInterface, DeviceType::MPS> {
  bool hasMPS() const override { return KIND == DeviceType::MPS; }
  bool isOnMacOSorNewer(unsigned, unsigned) const override { return true; }
  Allocator* getMPSDeviceAllocator() const override { return &on_current_device; }
  void deviceSynchronize() const override {}
};
struct XPUHooks final : ImpostorHooks<XPUHooksInterface, DeviceType::XPU> {
  bool hasXPU() const override { return KIND == DeviceType::XPU; }
  DeviceIndex getNumGPUs() const override { return deviceCount(); }
  DeviceIndex current_device() const override { return ::current_device; }
  void deviceSynchronize(DeviceIndex) const override {}
};
REGISTER_CUDA_HOOKS(CUDAHooks)
REGISTER_MPS_HOOKS(MPSHooks)
REGISTER_XPU_HOOKS(XPUHooks)

}  // namespace at

namespace {

// ---- Kernels

void refuse_float64(at::ScalarType dtype) {
  TORCH_CHECK_TYPE(HAS_FLOAT64 || (dtype != at::kDouble && dtype != at::kComplexDouble),
                   "Cannot convert a MPS Tensor to float64 dtype as the MPS framework doesn't support float64. "
                   "Please use float32 instead.");
}

Tensor empty(at::IntArrayRef sizes, std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
             std::optional<Device> device, std::optional<bool>, std::optional<at::MemoryFormat> format) {
  at::ScalarType type = c10::dtype_or_default(dtype);
  refuse_float64(type);
  return at::detail::empty_generic(sizes, allocator_of(device), c10::DispatchKeySet(KEY), type, format);
}

Tensor empty_strided(at::IntArrayRef sizes, at::IntArrayRef strides, std::optional<at::ScalarType> dtype,
                     std::optional<at::Layout>, std::optional<Device> device, std::optional<bool>) {
  at::ScalarType type = c10::dtype_or_default(dtype);
  refuse_float64(type);
  return at::detail::empty_strided_generic(sizes, strides, allocator_of(device), c10::DispatchKeySet(KEY), type);
}

// The CPU's view of a tensor of the device: the same memory, kept alive as long as the view.
Tensor host_view(const Tensor& tensor) {
  if (!is_impostor(tensor)) return tensor.detach();
  auto* data = static_cast<char*>(tensor.storage().mutable_data());
  if (data != nullptr) data += tensor.storage_offset() * tensor.element_size();
  return at::from_blob(data, tensor.sizes(), tensor.strides(), [tensor](void*) {},
                       tensor.options().device(at::kCPU).requires_grad(false));
}

// A tensor of the device that owns the memory of a CPU tensor.
Tensor adopt(const Tensor& host, Device device) {
  if (!host.defined() || !host.device().is_cpu() || !host.has_storage()) return host;
  refuse_float64(host.scalar_type());
  DeviceIndex index = index_of(device);
  auto num_bytes = static_cast<int64_t>(host.storage().nbytes());
  c10::DataPtr data = account(host.storage().mutable_data(), num_bytes, index, host.storage());
  c10::Storage storage(c10::Storage::use_byte_size_t(), num_bytes, std::move(data), allocator_of(device), true);
  Tensor made = at::detail::make_tensor<c10::TensorImpl>(std::move(storage), c10::DispatchKeySet(KEY), host.dtype());
  made.unsafeGetTensorImpl()->set_sizes_and_strides(host.sizes(), host.strides(), host.storage_offset());
  return made;
}

Tensor& copy_(Tensor& to, const Tensor& from, bool) {
  if (is_impostor(from) && to.scalar_type() != from.scalar_type()) refuse_float64(to.scalar_type());  // converts there
  if (to.numel() > 0 || from.numel() > 0) host_view(to).copy_(host_view(from));
  return to;
}
Tensor copy_from(const Tensor& from, const Tensor& to, bool non_blocking) {
  Tensor target = to;
  return copy_(target, from, non_blocking);
}
Tensor copy_from_and_resize(const Tensor& from, const Tensor& to) {
  if (to.sizes() != from.sizes()) const_cast<Tensor&>(to).resize_(from.sizes());
  return copy_from(from, to, false);
}
at::Scalar item(const Tensor& tensor) { return at::_local_scalar_dense(host_view(tensor)); }

// The CPU's native_dropout takes no generator, so it would not draw from the device's.
std::tuple<Tensor, Tensor> native_dropout(const Tensor& input, double p, std::optional<bool> train) {
  if (!train.value_or(true)) return {input.clone(), at::ones_like(input, input.options().dtype(at::kBool))};
  Tensor host = host_view(input), kept = at::empty_like(host);
  kept.bernoulli_(1 - p, host_generator(default_generator(input.get_device())));
  return {adopt(host * kept * (1 / (1 - p)), input.device()), adopt(kept.to(at::kBool), input.device())};
}

// Calls `change` with every tensor in an argument or result, and puts what it returns in its place.
template <class Change>
c10::IValue map_tensors(const c10::IValue& value, Change change) {
  if (value.isTensor()) return change(value.toTensor());
  if (value.isTensorList()) {
    c10::List<Tensor> changed;
    for (const Tensor& tensor : value.toTensorVector()) changed.push_back(change(tensor));
    return changed;
  }
  if (value.isOptionalTensorList()) {
    c10::List<std::optional<Tensor>> changed;
    for (const auto& tensor : value.toOptionalTensorVector()) {
      changed.push_back(tensor ? std::optional<Tensor>(change(*tensor)) : std::nullopt);
    }
    return changed;
  }
  return value;
}

// Returns the one device of the arguments, as the kernels of CUDA require. A CPU tensor is allowed as a number (no
// dimensions) and as an index.
std::optional<Device> common_device(const std::string& name, at::ArrayRef<c10::IValue> arguments) {
  bool indexes = name.rfind("aten::index", 0) == 0 || name.find("_index_put") != std::string::npos;
  std::optional<Device> device;
  std::optional<Device> other;
  for (size_t i = 0; i < arguments.size(); i++) {
    map_tensors(arguments[i], [&](const Tensor& tensor) {
      if (tensor.defined() && !is_impostor(tensor) && tensor.dim() > 0 && !(indexes && i > 0)) other = tensor.device();
      if (is_impostor(tensor) && device && *device != tensor.device()) other = tensor.device();
      if (is_impostor(tensor) && !device) device = tensor.device();
      return tensor;
    });
  }
  TORCH_CHECK(!device || !other, "Expected all tensors to be on the same device, but found at least two devices, ",
              device.value_or(Device(at::kCPU)), " and ", other.value_or(Device(at::kCPU)), "! (", name, ", impostor)");
  return device;
}

// Every other operation: the CPU's kernel on the CPU's views of the arguments; new results are moved to the device.
void run_on_host(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const auto& schema = op.schema();
  const std::string& name = schema.operator_name().name;
  size_t num_arguments = schema.arguments().size();
  size_t first = stack->size() - num_arguments;
  std::optional<Device> device = common_device(name, at::ArrayRef<c10::IValue>(*stack).slice(first, num_arguments));
  bool writes_out = false;
  for (const auto& argument : schema.arguments()) writes_out = writes_out || argument.is_out();
  if (writes_out) {  // the kernel may resize its results, which a view cannot
    at::native::cpu_fallback(op, stack, false, DispatchKey::CPU);
    return;
  }
  std::vector<std::pair<Tensor, Tensor>> views;  // the device's tensor and the CPU's view of it
  std::optional<Device> wanted;
  for (size_t i = first; i < stack->size(); i++) {
    c10::IValue& value = (*stack)[i];
    if (value.isDevice()) {
      wanted = value.toDevice();
      value = Device(at::kCPU);
    } else if (value.isGenerator()) {
      value = host_generator(value.toGenerator());
    } else if (value.isNone() && schema.arguments()[i - first].type()->str() == "Generator?") {
      value = host_generator(default_generator(device ? device->index() : wanted ? wanted->index() : -1));
    } else {
      value = map_tensors(value, [&](const Tensor& tensor) {
        if (!is_impostor(tensor) || !tensor.has_storage()) return tensor;
        for (const auto& [own, view] : views) {
          if (own.is_same(tensor)) return view;
        }
        return views.emplace_back(tensor, host_view(tensor)).second;
      });
    }
  }
  op.redispatchBoxed(c10::DispatchKeySet(DispatchKey::CPU), stack);
  Device target = wanted.value_or(device.value_or(Device(KIND, current_device)));
  for (size_t i = stack->size() - schema.returns().size(); i < stack->size(); i++) {
    (*stack)[i] = map_tensors((*stack)[i], [&](const Tensor& tensor) {
      for (const auto& [own, view] : views) {
        if (view.is_same(tensor)) return own;  // an in-place operation returns its argument
      }
      return target.type() == KIND ? adopt(tensor, target) : tensor;
    });
  }
}

// A build without MPS and XPU knows no convolution of theirs, and asks for these.
Tensor convolution(const Tensor& input, const Tensor& weight, const std::optional<Tensor>& bias, at::IntArrayRef stride,
                   at::IntArrayRef padding, at::IntArrayRef dilation, bool transposed, at::IntArrayRef output_padding,
                   int64_t groups) {
  std::optional<Tensor> host_bias;
  if (bias && bias->defined()) host_bias = host_view(*bias);
  Tensor result = at::convolution(host_view(input), host_view(weight), host_bias, stride, padding, dilation, transposed,
                                  output_padding, groups);
  return adopt(result, input.device());
}
std::tuple<Tensor, Tensor, Tensor> convolution_backward(
    const Tensor& gradient, const Tensor& input, const Tensor& weight, at::IntArrayRef stride, at::IntArrayRef padding,
    at::IntArrayRef dilation, bool transposed, at::IntArrayRef output_padding, int64_t groups,
    std::array<bool, 3> mask) {
  std::vector<int64_t> bias_sizes{gradient.size(1)};
  auto [for_input, for_weight, for_bias] = at::convolution_backward(
      host_view(gradient), host_view(input), host_view(weight), at::OptionalIntArrayRef(bias_sizes), stride, padding,
      dilation, transposed, output_padding, groups, mask);
  Device device = input.device();
  return {adopt(for_input, device), adopt(for_weight, device), adopt(for_bias, device)};
}

void record_stream(Tensor&, Stream) {}

// ---- Registration

// DistributedDataParallel times its stages with it.
struct NoTimer final : c10d::Timer {
  explicit NoTimer(Device) {}
  std::optional<int64_t> measureDifference(Event, Event) override { return 0; }
};

c10::impl::DeviceGuardImplRegistrar guard_registrar(KIND, new ImpostorGuard());

void register_kernels(torch::Library& library) {
  library.impl("empty.memory_format", &empty);
  library.impl("empty_strided", &empty_strided);
  library.impl("copy_", &copy_);
  library.impl("_copy_from", &copy_from);
  library.impl("_copy_from_and_resize", &copy_from_and_resize);
  library.impl("_local_scalar_dense", &item);
  library.impl("native_dropout", &native_dropout);
  library.impl("record_stream", &record_stream);
  library.impl("view", TORCH_FN(at::native::view));
  library.impl("as_strided", TORCH_FN(at::native::as_strided_tensorimpl));
  library.impl("_reshape_alias", TORCH_FN(at::native::_reshape_alias));
  library.impl("unfold", TORCH_FN(at::native::unfold));
  library.impl("resize_", TORCH_FN(at::native::resize_));
  library.impl("set_.source_Storage", TORCH_FN(at::native::set_));
  library.impl("set_.source_Storage_storage_offset", TORCH_FN(at::native::set_storage_cpu_));
  library.impl("view_as_real", TORCH_FN(at::native::view_as_real));
  library.impl("view_as_complex", TORCH_FN(at::native::view_as_complex));
  library.impl("convolution_overrideable", &convolution);
  library.impl("convolution_backward_overrideable", &convolution_backward);
}

[[maybe_unused]] const bool registered = [] {
  c10::SetAllocator(KIND, &on_current_device, 1);
  // Not TORCH_LIBRARY_IMPL, whose key must be known when this is compiled. Never destroyed: torch may be gone at exit.
  auto* everything = new torch::Library(torch::Library::IMPL, "_", KEY, __FILE__, __LINE__);
  everything->fallback(torch::CppFunction::makeFromBoxedFunction<&run_on_host>());
  register_kernels(*new torch::Library(torch::Library::IMPL, "aten", KEY, __FILE__, __LINE__));
  return true;
}();

}  // namespace

namespace c10d {
C10_REGISTER_TYPED_CLASS(TimerRegistry, KIND, NoTimer)
}

// ---- What impostor.py calls

extern "C" {
int64_t impostor_allocated(int device) { return memory[device].allocated; }
int64_t impostor_peak(int device) { return memory[device].peak; }
int64_t impostor_num_allocations(int device) { return memory[device].num_allocations; }
void impostor_reset_peak(int device) { memory[device].peak = memory[device].allocated.load(); }
void impostor_set_capacity(int device, int64_t num_bytes) { memory[device].capacity = num_bytes; }
int64_t impostor_capacity(int device) { return memory[device].capacity; }
int impostor_device() { return current_device; }
void impostor_set_device(int device) { current_device = static_cast<DeviceIndex>(device); }
int64_t impostor_stream(int device) { return current_stream[device]; }
void impostor_set_stream(int device, int64_t stream) { current_stream[device] = stream; }
int64_t impostor_new_stream() { return ++num_streams; }
// What UntypedStorage.resize_ does where torch has CUDA: fully_shard frees and allocates gathered parameters by it.
void impostor_resize_storage(void* storage, int64_t num_bytes) {
  auto* own = static_cast<c10::StorageImpl*>(storage);
  c10::DataPtr data = allocator_of(own->device())->allocate(num_bytes);
  size_t kept = std::min<size_t>(num_bytes, own->nbytes());
  if (kept > 0) std::memcpy(data.get(), own->data(), kept);
  own->set_data_ptr_noswap(std::move(data));
  own->set_nbytes(num_bytes);
}
void impostor_next_generator_is_default(int device) { next_is_default = device; }
}
