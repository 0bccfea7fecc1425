// A static page: sliders over precomputed figures, and questions that are judged by the hashes of their answers.

async function hash(text) {
  const bytes = await crypto.subtle.digest("SHA-256", new TextEncoder().encode(text));
  return new Uint8Array(bytes);
}

function hexadecimal(bytes) {
  return [...bytes].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}

// The text that was encrypted with the answer: `sealed` in labs/answering.py.
async function opened(salt, key, sealed) {
  const bytes = Uint8Array.from(sealed.match(/../g) || [], (pair) => parseInt(pair, 16));
  for (let block = 0; block * 32 < bytes.length; block++) {
    const stream = await hash(salt + "\n" + key + "\n" + block);
    for (let at = 0; at < 32 && block * 32 + at < bytes.length; at++) bytes[block * 32 + at] ^= stream[at];
  }
  return new TextDecoder().decode(bytes);
}

// A number as people write it: `number_in` in labs/questions.py.
function numberIn(given) {
  const text = given.replaceAll("%", "").trim(), grouped = /^[+-]?[1-9]\d{0,2}(,\d{3})+(\.\d*)?$/.test(text);
  return text ? Number(text.replaceAll(",", grouped ? "" : ".")) : NaN;
}

// The texts one of which is the right one if the answer is: `Answer.cells` in labs/answering.py.
function cells(given, tolerance) {
  if (!tolerance) return [given];
  const number = numberIn(given);
  if (!Number.isFinite(number)) return null;
  const cell = Math.floor(number / tolerance + 0.5);
  return [cell, cell - 1, cell + 1].map(String);
}

function remembered() {
  try { return new Set(JSON.parse(localStorage.getItem("rueda-labs") || "[]")); } catch { return new Set(); }
}

function remember(key) {
  try { localStorage.setItem("rueda-labs", JSON.stringify([...remembered().add(key)])); } catch { /* a page without a memory */ }
}

function countAnswered() {
  const place = document.getElementById("progress"), forms = places("form.question");
  if (!place || !forms.length) return;
  const known = remembered(), done = forms.filter((form) => known.has(JSON.parse(form.dataset.answer).salt));
  done.forEach((form) => form.classList.add("answered"));
  place.textContent = done.length + " of " + forms.length + " questions answered";
}

function listenToQuestion(form) {
  const { salt, digest, tolerance, hints, why } = JSON.parse(form.dataset.answer);
  const reply = form.querySelector(".reply");
  let wrong = 0;
  const say = (isRight, html) => {
    reply.dataset.right = String(isRight);
    reply.innerHTML = "<b>" + (isRight ? "✓ Right." : "✗ Not yet.") + "</b> " + html;
  };
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    const given = new FormData(form).get(salt);
    if (given === null || given === "") return;
    const tried = cells(given, tolerance);
    if (!tried) { say(false, "Please give a number."); return; }
    for (const cell of tried)
      if (hexadecimal(await hash(salt + "\n" + cell)) === digest) {
        say(true, await opened(salt, cell, why));
        remember(salt);
        countAnswered();
        return;
      }
    say(false, hints[Math.min(++wrong, hints.length) - 1]);
  });
}

function chosen(stage) {
  return [...stage.querySelectorAll(".controls input, .controls select")].reduce((index, control) => {
    const [at, count] = control.matches("select") ? [control.selectedIndex, control.options.length] : [Number(control.value), Number(control.max) + 1];
    return index * count + at;
  }, 0);
}

function listenToControls(stage, frames) {
  let drawing = Promise.resolve();
  const update = () => {
    stage.querySelectorAll(".controls input").forEach((input) => {
      input.nextElementSibling.textContent = input.dataset.texts.split("|")[Number(input.value)];
    });
    fill(stage, frames[chosen(stage)]);
    drawing = drawing.then(() => drawStage(stage)).then(() => { stage.dataset.drawn = String(Number(stage.dataset.drawn || 0) + 1); });
    return drawing;
  };
  stage.querySelectorAll(".controls input, .controls select").forEach((control) => control.addEventListener("input", update));
  stage.querySelectorAll(".controls button").forEach((button) => play(button, button.parentElement.querySelector("input"), update));
  return update();
}

// Moves a slider by itself, from where it is or from its start, until its end.
function play(button, input, update) {
  let timer = null;
  const stop = () => { clearInterval(timer); timer = null; button.textContent = "▶"; button.setAttribute("aria-label", "play"); };
  button.addEventListener("click", () => {
    if (timer) { stop(); return; }
    if (input.value === input.max) input.value = "0";
    button.textContent = "⏸";
    button.setAttribute("aria-label", "stop");
    update();
    timer = setInterval(() => {
      if (input.value === input.max) { stop(); return; }
      input.value = String(Number(input.value) + 1);
      update();
    }, Number(button.dataset.milliseconds));
  });
}

async function start() {
  const found = parsed(await unpacked("frames")).sections;
  places("form.question").forEach(listenToQuestion);
  countAnswered();
  await plotlyThere();
  for (const stage of places(".stage")) await listenToControls(stage, found[stage.dataset.section]);
  redrawWhenThePageChanges();
  document.documentElement.dataset.ready = "true";
}

start().catch(tellTrouble);
