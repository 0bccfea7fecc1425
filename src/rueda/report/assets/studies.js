// The figures of the other studies: throughput, steps to target, the linear model.

function throughput(data) {
  const { batch, images_per_second: speeds, spread, saturates_at: end } = data.throughput;
  const traces = [{
    type: "scatter", mode: "lines+markers", x: batch, y: speeds, line: { color: colour("blue"), width: 2.5 }, marker: { size: 7 },
    error_y: { type: "data", array: spread.map((value) => value || 0), color: colour("blue"), thickness: 1.2 },
    hovertemplate: "batch %{x:,}: %{y:,.0f} images/s<extra></extra>", showlegend: false,
  }];
  const shapes = end ? [{ type: "line", x0: end, x1: end, yref: "paper", y0: 0, y1: 1, line: { color: colour("red"), width: 1.4, dash: "dash" } }] : [];
  const annotations = end ? [{ x: Math.log10(end), y: 0.04, yref: "paper", xanchor: "right", xshift: -6, showarrow: false,
    text: "saturates at " + whole(end), font: { color: colour("red") } }] : [];
  return { traces, layout: layout(logAxis("local batch", thin(batch)), axis("images per second", { rangemode: "tozero" }), { shapes, annotations }) };
}

function thin(values) {
  const most = isNarrow() ? 5 : 10;
  const stride = Math.ceil(values.length / most);
  return values.filter((_, index) => index % stride === 0);
}

// S(B) = S + E / B; the boundaries of its three regimes are the record's.
function steps(data) {
  const { batch, updates, rate, examples, fit, target_accuracy: target } = data.steps;
  const shapes = [], annotations = [];
  const traces = [{
    type: "scatter", mode: "markers", x: batch, y: updates, name: "measured", marker: { size: 9, color: colour("blue") },
    customdata: batch.map((_, index) => lines([
      ...(examples[index] === null ? [] : [whole(examples[index]) + " examples"]), ...(rate[index] === null ? [] : ["rate " + whole(rate[index])])])),
    hovertemplate: "batch %{x:,}: %{y:,.0f} updates<br>%{customdata}<extra></extra>",
  }];
  const low = Math.min(...batch) / 1.5, high = Math.max(...batch) * 1.5;
  const least = Math.min(...finite(updates)), most = Math.max(...finite(updates));
  if (fit) {
    const { smallest_updates: fewest, smallest_examples: few, critical_batch: critical, interval, boundaries } = fit;
    const grid = Array.from({ length: 81 }, (_, index) => low * Math.pow(high / low, index / 80));
    const curve = (name, value, dash, hue, width) => ({ type: "scatter", mode: "lines", name, x: grid, y: grid.map(value),
      line: { color: colour(hue), dash, width }, hoverinfo: "skip" });
    traces.unshift(curve("fit", (size) => fewest + few / size, "solid", "blue", 2),
      curve("perfect scaling", (size) => few / size, "dot", "muted", 1.2), curve("fewest updates", () => fewest, "dash", "muted", 1.2));
    const ends = [low, ...boundaries.map((end) => Math.min(Math.max(end, low), high)), high];
    [["perfect<br>scaling", 0.0], ["diminishing<br>returns", 0.06], ["maximal<br>parallelism", 0.13]].forEach(([name, strength], index) => {
      if (ends[index + 1] / ends[index] < 1.2) return;
      shapes.push({ type: "rect", x0: ends[index], x1: ends[index + 1], yref: "paper", y0: 0, y1: 1, layer: "below",
        fillcolor: colour("ink"), opacity: strength, line: { width: 0 } });
      annotations.push({ x: Math.log10(ends[index] * ends[index + 1]) / 2, y: 1, yref: "paper", yanchor: "bottom", showarrow: false, text: name,
        font: { color: colour("muted"), size: 12 } });
    });
    if (interval && interval[0] > 0) shapes.push({ type: "rect", x0: interval[0], x1: interval[1], yref: "paper", y0: 0, y1: 1, layer: "below",
      fillcolor: colour("red"), opacity: 0.14, line: { width: 0 } });
    shapes.push({ type: "line", x0: critical, x1: critical, yref: "paper", y0: 0, y1: 1, line: { color: colour("red"), width: 1.4, dash: "dash" } });
    annotations.push({ x: Math.log10(critical), y: 0.97, yref: "paper", yanchor: "top", xanchor: "left", xshift: 6, showarrow: false, align: "left",
      text: "critical batch " + whole(critical), font: { color: colour("red") } });
  }
  const yaxis = axis(target ? `updates to ${+(100 * target).toPrecision(3)} % test accuracy` : "updates to the target", { type: "log", range: [Math.log10(least / 1.8), Math.log10(most * 1.8)], dtick: 1 });
  const xaxis = logAxis("batch", thin(batch), { range: [Math.log10(low), Math.log10(high)] });
  return { traces, layout: layout(xaxis, yaxis, { shapes, annotations, showlegend: true, margin: { l: 56, r: 16, t: 44, b: 48 },
    legend: { orientation: "h", y: -0.2, yanchor: "top", x: 0, font: { size: 12 }, itemclick: false, itemdoubleclick: false } }) };
}

const hues = ["red", "sky", "purple", "green", "orange", "ink", "blue", "muted"];

function loss(mean, w, b) {
  return w * w * mean.xx + b * b + 2 * w * b * mean.x - 2 * w * mean.xy - 2 * b * mean.y + mean.yy;
}

function lossGrid(mean) {
  const ws = Array.from({ length: 61 }, (_, index) => index / 3);
  const bs = Array.from({ length: 61 }, (_, index) => -18 + (index * 2) / 3);
  return { ws, bs, zs: bs.map((b) => ws.map((w) => Math.log10(Math.max(loss(mean, w, b), 1e-9)))) };
}

// Large batches go the same way: small ones are drawn over them, thinner.
function pathTraces(gd, three) {
  return gd.paths.map((path, index) => {
    const hue = colour(hues[index % hues.length]);
    const heights = path.w.map((w, step) => Math.log10(Math.max(loss(gd.moments, w, path.b[step]), 1e-9)));
    const text = heights.map((height, step) => "step " + step + "<br>loss " + whole(Math.pow(10, height)));
    const shared = { name: "batch " + (path.batch === null ? "?" : whole(path.batch)), x: path.w, y: path.b, text,
      hovertemplate: "%{fullData.name}, %{text}<br>w %{x:.2f}, b %{y:.2f}<extra></extra>" };
    return three
      ? { ...shared, type: "scatter3d", mode: "lines", z: heights.map((height) => height + 0.06), line: { color: hue, width: 4 + index } }
      : { ...shared, type: "scatter", mode: "lines", line: { color: hue, width: 1.5 + index * 0.8 } };
  }).reverse();
}

const legendBelow = { orientation: "h", y: -0.02, yanchor: "top", x: 0.5, xanchor: "center", font: { size: 12 }, traceorder: "reversed" };

function surface(data) {
  const { ws, bs, zs } = lossGrid(data.gd.moments);
  const values = powers(Math.pow(10, Math.min(...zs.flat())), Math.pow(10, Math.max(...zs.flat())), 10);
  const side = (title, more) => ({ title: { text: title }, gridcolor: colour("edge"), color: colour("muted"), showbackground: false,
    showspikes: false, ...more });
  const ground = { type: "surface", x: ws, y: bs, z: zs, colorscale: "Cividis", showscale: false, showlegend: false,
    contours: { z: { show: true, usecolormap: false, color: "rgba(255,255,255,.35)", width: 1 } },
    hovertemplate: "w %{x:.2f}, b %{y:.2f}<extra></extra>" };
  return {
    traces: [ground, ...pathTraces(data.gd, true)], height: 460,
    layout: layout(undefined, undefined, { showlegend: true, margin: { l: 0, r: 0, t: 0, b: 0 }, dragmode: "turntable", legend: legendBelow,
      scene: { xaxis: side("w", { range: [0, 20] }), yaxis: side("b", { range: [-18, 22] }), camera: { eye: isNarrow() ? { x: 0.4, y: -2.1, z: 1.5 } : { x: 0.3, y: -1.6, z: 1.15 }, center: { x: 0, y: 0, z: -0.15 } },
        zaxis: side("loss", { tickvals: values.map(Math.log10), ticktext: values.map(whole) }), aspectratio: { x: 1, y: 1, z: 0.7 } } }),
  };
}

function contours(data) {
  const { ws, bs, zs } = lossGrid(data.gd.moments);
  const ground = { type: "contour", x: ws, y: bs, z: zs, colorscale: "Cividis", showscale: false, opacity: 0.55, ncontours: 18,
    line: { width: 0.5 }, hoverinfo: "skip", showlegend: false };
  return {
    traces: [ground, ...pathTraces(data.gd, false)], height: 460,
    layout: layout(axis("w", { range: [0, 20] }), axis("b", { range: [-18, 22] }), { showlegend: true, legend: { ...legendBelow, y: -0.14 } }),
  };
}
