// A static page brings plotly itself.

function plotlyThere() {
  return loadPlotly();
}
