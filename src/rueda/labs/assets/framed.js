// A frame in marimo: takes plotly from the notebook's page when the reader comes near, and fits itself to its contents.

function fit() {
  const height = Math.ceil(document.body.getBoundingClientRect().height) + "px";
  if (frameElement && frameElement.style.height !== height) frameElement.style.height = height;
}

function plotlyFromThePage() {
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
    watching.observe(document.body);
  });
}

function plotlyThere() {
  return nearby().then(plotlyFromThePage);
}

new ResizeObserver(fit).observe(document.body);
