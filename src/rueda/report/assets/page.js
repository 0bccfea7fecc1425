// The page: draw every figure. With `#png` in the address the figures become images.

async function start() {
  for (const data of Object.values(sections)) Object.assign(data, { hidden: new Set(), chosen: {} });
  document.querySelectorAll("[data-section]").forEach(listen);
  await loadPlotly();
  if (location.hash === "#png") await exportFigures();
  else {
    watchScenes();
    await drawAll();
    addEventListener("beforeprint", () => turnToPaper(true));
    addEventListener("afterprint", () => turnToPaper(false));
    for (const query of [narrow, dark]) query.addEventListener("change", async () => {
      delete document.documentElement.dataset.ready;
      await drawAll();
      document.documentElement.dataset.ready = "true";
    });
  }
  document.documentElement.dataset.ready = "true";
}

start().catch(tellTrouble);
