// A stage in marimo: draws what the notebook's cells hand over.

const stage = document.querySelector(".stage");
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
receive();
plotlyThere().then(() => {
  isReady = true;
  receive();
  redrawWhenThePageChanges();
});
