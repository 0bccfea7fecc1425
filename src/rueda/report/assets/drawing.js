// From data to figures: on the screen, on paper (print), and as images (`#png`).
//
// A browser keeps 16 WebGL scenes alive (8 on some phones) and blanks the oldest beyond. So scenes are drawn when they
// come into view, and those seen longest ago make room. Print cannot wait for scenes: of those that were seen pictures are
// taken when nothing has changed for a while, one at a time (plotly's images share one context), and stand in their
// places on paper. Drawing all of them beforehand would cost every reader, and without a GPU many seconds.

const mostScenes = 8;
const alive = new Map(); // places of scenes, those seen longest ago first, and how many scenes each has
const near = new Set(); // places in view, or almost

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

// The browser would count a scene's context until its memory is collected: give it up at once, and silently.
function purge(place) {
  const canvases = [...place.querySelectorAll("canvas")];
  Plotly.purge(place);
  alive.delete(place);
  for (const canvas of canvases) {
    canvas.addEventListener("webglcontextlost", (event) => event.stopImmediatePropagation(), true);
    canvas.getContext("webgl")?.getExtension("WEBGL_lose_context")?.loseContext();
  }
}

// Give up the scenes seen longest ago until `more` fit; those in view stay.
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

function watchScenes() {
  const watch = new IntersectionObserver((entries) => entries.forEach(({ target, isIntersecting }) => {
    if (isIntersecting) { near.add(target); show(target); }
    else { near.delete(target); clearTimeout(waiting.get(target)); }
  }), { rootMargin: "300px 0px" });
  for (const place of places(".plot")) {
    const figure = build(...whose(place));
    if (!numScenes(figure)) continue;
    place.classList.add("scene");
    place.style.height = figure.height + "px";
    watch.observe(place);
  }
}

// A legend on paper cannot scroll: it shows all names, and the figure grows by what they need.
function onPaper(figure) {
  const width = numScenes(figure) === 1 ? 650 : 900; // print makes it 3/4 of that, which fits A4
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
const waiting = new Map(); // places whose picture is due when they have rested, and their timers
let pictures = Promise.resolve();

function pictureLater(place) {
  clearTimeout(waiting.get(place)); // scrolling past costs nothing
  waiting.set(place, setTimeout(() => { pictures = pictures.then(() => takePicture(place)); }, restMilliseconds));
}

// The browser waits for nothing here: plotly draws what is not a scene at once.
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
