// A stage in marimo: draws what the notebook's cells hand over, and fits the frame to it.

const stage = document.querySelector(".stage");

function fit() {
  const height = Math.ceil(document.body.getBoundingClientRect().height) + "px";
  if (frameElement && frameElement.style.height !== height) frameElement.style.height = height;
}

function plotlyLoaded() {
  return new Promise((done, failed) => {
    const load = () => {
      const script = document.createElement("script");
      script.src = parent.ruedaPlotly;
      script.onload = done;
      script.onerror = failed;
      document.head.append(script);
    };
    if (parent.ruedaPlotly) load();
    else parent.addEventListener("rueda-plotly", load, { once: true });
  });
}

// A figure far below is drawn when the reader comes near it: loading plotly and drawing cost time in every frame.
function nearby() {
  return new Promise((done) => {
    const watching = new IntersectionObserver((entries) => {
      if (entries.some((entry) => entry.isIntersecting)) { watching.disconnect(); done(); }
    }, { rootMargin: "800px 0px", root: null });
    watching.observe(stage);
  });
}

let drawing = Promise.resolve(), isReady = false;

function receive() {
  const text = parent.ruedaShown?.[stage.dataset.section];
  if (text === undefined) return;
  fill(stage, parsed(text).sections[stage.dataset.section]);
  if (isReady) drawing = drawing.then(() => drawStage(stage)).then(() => {
    document.documentElement.dataset.drawn = String(Number(document.documentElement.dataset.drawn || 0) + 1);
  });
}

parent.addEventListener("rueda-shown", (event) => { if (event.detail === stage.dataset.section && frameElement?.isConnected) receive(); });
new ResizeObserver(fit).observe(document.body);
receive();
nearby().then(plotlyLoaded).then(() => {
  isReady = true;
  receive();
  redrawWhenThePageChanges();
});
