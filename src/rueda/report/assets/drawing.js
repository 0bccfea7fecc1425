// From data to figures: on the screen, on paper (print), and as images (`#png`).
//
// A browser keeps at most 16 WebGL scenes (8 on some phones) and blanks the oldest beyond that. So scenes are drawn when
// they come into view, and those seen longest ago are removed. Printing cannot wait for scenes: once a scene has been in
// view unchanged for a while, a picture of it is taken, one at a time (plotly's images share one context), which replaces
// it on paper. Drawing all scenes beforehand would take every reader many seconds without a GPU.

const mostScenes = 8;
const alive = new Map(); // the elements whose scenes are drawn, those seen longest ago first, and their numbers of scenes
const near = new Set(); // the elements that are in view, or almost

function numScenes(figure) {
  return Object.keys(figure.layout).filter((name) => /^scene\d*$/.test(name)).length;
}

function draw(key, name) {
  const place = document.getElementById(key + "-" + name);
  const figure = paper ? onPaper(build(key, name)) : build(key, name);
  place.style.height = figure.height + "px";
  return Plotly.react(place, figure.traces, figure.layout, { responsive: true, displayModeBar: false, scrollZoom: false, doubleClick: "reset" });
}

function places(selector) {
  return [...document.querySelectorAll(selector)];
}

function whose(place) {
  return [place.closest("[data-section]").dataset.section, place.dataset.figure];
}

async function drawAll() {
  for (const place of places(".plot")) if (!place.matches(".scene") || alive.has(place)) await draw(...whose(place));
}

// The browser counts a scene's context until garbage collection: release it at once, without its warning.
function purge(place) {
  const canvases = [...place.querySelectorAll("canvas")];
  Plotly.purge(place);
  alive.delete(place);
  for (const canvas of canvases) {
    canvas.addEventListener("webglcontextlost", (event) => event.stopImmediatePropagation(), true);
    canvas.getContext("webgl")?.getExtension("WEBGL_lose_context")?.loseContext();
  }
}

// Remove the scenes seen longest ago until `more` new ones fit; those in view stay.
function makeRoom(more) {
  const total = () => [...alive.values()].reduce((sum, count) => sum + count, more);
  for (const place of [...alive.keys()]) if (!near.has(place) && total() > mostScenes) purge(place);
}

async function show(place) {
  const count = alive.get(place) || numScenes(build(...whose(place)));
  if (!alive.delete(place)) makeRoom(count);
  const fresh = !place.data;
  alive.set(place, count);
  if (fresh) await draw(...whose(place));
  if (near.has(place) && !place.parentElement.querySelector(".still")) pictureLater(place);
}

const watch = new IntersectionObserver((entries) => entries.forEach(({ target, isIntersecting }) => {
  if (isIntersecting) { near.add(target); show(target); }
  else { near.delete(target); clearTimeout(waiting.get(target)); }
}), { rootMargin: "300px 0px" });

function watchScenes() {
  for (const place of places(".plot")) {
    const figure = build(...whose(place));
    if (!numScenes(figure)) continue;
    place.classList.add("scene");
    place.style.height = figure.height + "px";
    watch.observe(place);
  }
}

// A legend on paper cannot scroll: it shows all names, and the figure grows by their height.
function onPaper(figure) {
  const width = numScenes(figure) === 1 ? 650 : 900; // print scales it to 3/4, which fits A4
  const { legend, showlegend } = figure.layout;
  const named = figure.traces.filter((one) => showlegend && one.name && one.visible !== false && (one.showlegend ?? !/surface|contour|heatmap/.test(one.type)));
  const pen = document.createElement("canvas").getContext("2d");
  pen.font = "12px " + font().family;
  const column = 50 + Math.max(0, ...named.map((one) => pen.measureText(one.name.replace(/<[^>]*>|&[^;]*;/g, "")).width));
  const rows = Math.ceil(named.length / Math.max(1, Math.floor((width - 40) / column)));
  const height = figure.height + 19 * Math.max(0, rows - 1);
  return { traces: figure.traces, height, layout: { ...figure.layout, width, height, legend: { ...legend, maxheight: 1 } } };
}

function forPaper(make) {
  paper = true;
  try { return make(); } finally { paper = false; }
}

function toImage(figure, scale) {
  const { width, height } = figure.layout;
  return Plotly.toImage({ data: figure.traces, layout: figure.layout }, { format: "png", width, height, scale });
}

async function takePicture(place) {
  await new Promise((done) => (window.requestIdleCallback || setTimeout)(done));
  const figure = forPaper(() => onPaper(build(...whose(place))));
  const picture = place.parentElement.querySelector(".still") || document.createElement("img");
  picture.className = "still";
  picture.alt = "";
  picture.width = 0.75 * figure.layout.width;
  picture.src = await toImage(figure, 1.5);
  place.after(picture);
}

const restMilliseconds = 1500;
const waiting = new Map(); // the timers of elements whose picture is taken when they have not changed for a while
let pictures = Promise.resolve();

function pictureLater(place) {
  clearTimeout(waiting.get(place)); // nothing is computed for a scene that is only scrolled past
  waiting.set(place, setTimeout(() => { pictures = pictures.then(() => takePicture(place)); }, restMilliseconds));
}

// The browser does not wait for this function; plotly draws everything but scenes synchronously.
function turnToPaper(isOn) {
  paper = isOn;
  for (const place of places(".plot:not(.scene)")) draw(...whose(place));
}

async function exportFigures() {
  for (const [key, section] of Object.entries(sections))
    for (const [name, plot] of Object.entries(section.plots))
      for (const [file, chosen] of Object.entries(plot.images)) {
        section.chosen = chosen;
        const image = document.createElement("img");
        image.dataset.file = key + "-" + file;
        image.src = await toImage(forPaper(() => onPaper(build(key, name))), 2);
        document.body.append(image);
      }
}
