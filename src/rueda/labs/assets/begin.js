// Unpacks plotly once for all figures of a notebook: each figure's frame loads it from this address.
"use strict";

(async () => {
  if (parent.ruedaPlotly) return;
  const packed = Uint8Array.from(atob(document.getElementById("plotly").textContent), (letter) => letter.charCodeAt(0));
  const text = await new Response(new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"))).text();
  parent.ruedaPlotly = parent.URL.createObjectURL(new parent.Blob([text], { type: "text/javascript" }));
  parent.dispatchEvent(new parent.CustomEvent("rueda-plotly"));
})();
