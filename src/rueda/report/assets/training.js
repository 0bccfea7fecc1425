// The figures of techniques and runs: what each kept, how it grew, schedules, speed.

const measures = {
  test_accuracy: ["test accuracy", true], train_accuracy: ["training accuracy", true],
  test_loss: ["test loss", false], train_loss: ["training loss", false],
};

function axisTitle(data, isLog) {
  const isTime = data.axis === "seconds";
  return (isTime ? "seconds of training" : data.axis) + (isLog ? ", logarithmic" : "")
    + (isTime && data.lines.some((line) => line.rehearsed) ? " (rehearsed runs: of one process)" : "");
}

// One run much longer than most (N workers make N times fewer updates in an epoch; one row may train for many epochs)
// would squeeze the others into a corner of a linear axis.
function isLong(data) {
  const ends = data.lines.filter((line) => !line.diverged && !data.hidden.has(line.row))
    .map((line) => Math.max(...finite(line.progress[data.axis]))).filter((end) => end > 0).sort((one, other) => one - other);
  return ends.length > 1 && ends[ends.length - 1] / ends[Math.floor((ends.length - 1) / 4)] >= 4;
}

// Where a logarithmic axis begins: a little before the first value, and not far before the end of the first epoch.
function beginning(data, part) {
  const values = (one) => data.lines.filter((line) => !data.hidden.has(line.row))
    .flatMap((line) => finite(line[one][data.axis])).filter((value) => value > 0);
  return Math.max(Math.min(...values(part)), Math.min(...values("progress")) / 10) / (part === "progress" ? 1.15 : 2);
}

function timeAxis(data, part) {
  const values = data.lines.filter((line) => !data.hidden.has(line.row)).flatMap((line) => finite(line[part][data.axis]));
  const end = Math.max(0, ...values) || 1;
  if (!isLong(data)) {
    const ticks = data.axis === "epochs" && end <= 12 && !isNarrow() ? 1 : undefined;
    return axis(axisTitle(data, false), { range: [0, end * 1.02], dtick: ticks });
  }
  const start = beginning(data, part);
  return logAxis(axisTitle(data, true), oneTwoFive(start, end), { range: [start, end * 1.06].map(Math.log10) });
}

function style(data, line) {
  const row = data.rows[line.row];
  const shared = data.lines.filter((other) => other.row === line.row).length > 1;
  return {
    color: colour(row.colour), dash: row.dash,
    width: row.role === "other" ? (data.rows.length > 6 ? 1.6 : 2) : shared ? 2.2 : 3,
  };
}

function legendName(row) {
  return brief(row.name, 60) + (row.rehearsed ? " (rehearsed)" : "");
}

function trace(data, line, xs, ys, what, first) {
  const row = data.rows[line.row];
  return {
    type: "scatter", x: xs, y: ys, customdata: xs, name: legendName(row), showlegend: first,
    mode: finite(ys).length <= 40 ? "lines+markers" : "lines", line: style(data, line),
    marker: { size: row.role === "other" ? 4 : 6 }, opacity: row.role === "other" && data.rows.length > 6 ? 0.75 : 1,
    meta: [lines(["<b>" + row.name + "</b>", ...line.about, ...(line.diverged ? ["diverged"] : [])]), line.progress.epochs.length], hovertemplate:
      "%{meta[0]}<br><b>" + what + "</b> at %{customdata:,} " + data.axis + "<extra></extra>",
  };
}

function runTraces(data, part, name, what) {
  const seen = new Set();
  return data.lines.filter((line) => line[part][name] && !data.hidden.has(line.row)).map((line) => {
    const first = !seen.has(line.row);
    seen.add(line.row);
    return trace(data, line, line[part][data.axis], line[part][name], what, first);
  });
}

// Names at the line ends of those that stand out, moved apart where they would touch.
function endLabels(data, name, range) {
  if (isNarrow() || paper) return [];
  const few = data.rows.length <= 5;
  const ends = [];
  data.rows.forEach((row, index) => {
    if ((row.role === "other" && !few) || data.hidden.has(index)) return;
    const values = data.lines.filter((line) => line.row === index && line.progress[name])
      .map((line) => finite(line.progress[name]).pop()).filter((value) => value !== undefined);
    if (values.length) ends.push({ row, y: values.reduce((sum, value) => sum + value, 0) / values.length });
  });
  ends.sort((one, other) => one.y - other.y);
  const gap = (range[1] - range[0]) * 0.06;
  ends.forEach((end, index) => { end.at = index ? Math.max(end.y, ends[index - 1].at + gap) : end.y; });
  for (let index = ends.length - 1, top = range[1] - gap / 4; index >= 0; index--, top -= gap)
    ends[index].at = Math.min(ends[index].at, top);
  return ends.map((end) => ({
    x: 1, xref: "paper", xanchor: "left", xshift: 8, y: end.at, yref: "y", showarrow: false, align: "left",
    text: brief(end.row.name, 30),
    font: { color: colour(end.row.colour), size: 13 },
  }));
}

function labelRoom(annotations) {
  return annotations.length ? 30 + 7.6 * Math.max(...annotations.map((one) => one.text.length)) : 16;
}

function progress(data) {
  const [title, share] = measures[data.measure];
  const traces = runTraces(data, "progress", data.measure, title + (share ? " %{y:.1%}" : " %{y:.4g}"));
  const values = finite(traces.flatMap((one) => one.y));
  const low = values.length ? Math.min(...values) : 0, high = values.length ? Math.max(...values) : 1;
  const pad = (high - low || 0.1) * 0.06;
  const range = [share ? Math.max(0, low - pad) : low - pad, share ? Math.min(1.005, high + pad) : high + pad];
  const annotations = endLabels(data, data.measure, range);
  return {
    traces, height: isNarrow() ? 320 : 440,
    layout: layout(timeAxis(data, "progress"),
      axis(title, { range, tickformat: share ? shares : undefined }),
      { annotations, margin: { l: 56, r: labelRoom(annotations), t: 12, b: 48 } }),
  };
}

function schedule(data, name, title, what) {
  const traces = runTraces(data, "schedule", name, what);
  // Peaks decide whether lines share a scale: a cosine that ends at zero needs no seven decades.
  const peaks = traces.map((one) => Math.max(...finite(one.y))).filter((value) => value > 0);
  const low = peaks.length ? Math.min(...peaks) : 1, high = peaks.length ? Math.max(...peaks) : 10;
  const lowest = Math.min(low, ...finite(traces.flatMap((one) => one.y)).filter((value) => value > 0));
  const starts = name === "global_batch" ? lowest : Math.max(low / 30, lowest);
  const log = name === "global_batch" ? high / starts >= 2 : high / low > 20;
  // A row tells what was used up to its end: a value reaches back to the row before, the first one to the start.
  const start = isLong(data) ? beginning(data, "schedule") : 0;
  traces.forEach((one) => {
    const isCoarse = name === "global_batch" || one.x.length <= one.meta[1]; // a line through every update needs no stairs
    Object.assign(one, { mode: "lines", x: [start, ...one.x], y: [one.y[0], ...one.y], customdata: [0, ...one.customdata] });
    one.line.shape = isCoarse ? "vh" : "linear";
  });
  const ticks = name === "global_batch" ? powers(starts, high, high / starts > 500 ? 4 : 2) : high / starts > 1000 ? powers(starts, high, 10) : oneTwoFive(starts, high);
  const yaxis = !log ? axis(title, { rangemode: "tozero" })
    : logAxis(title, ticks, { range: [Math.log10(starts / 1.3), Math.log10(high * 1.3)] });
  return { traces, layout: layout(timeAxis(data, "schedule"), yaxis) };
}

function byAccuracy(data) {
  const rank = (row) => (row.accuracy === null ? -1 : row.accuracy);
  return data.rows.filter((row) => row.accuracy !== null || row.verdict === "diverged").sort((one, other) => rank(one) - rank(other));
}

function nameAxis(rows) {
  return axis("", {
    tickvals: rows.map((_, index) => index), range: [-0.7, rows.length - 0.3], gridcolor: "rgba(0,0,0,0)",
    ticktext: rows.map((row) => (isNarrow() ? brief(row.name, 60).split("+").map((part) => brief(part, 17)).join("<br>+") : brief(row.name, 44)) + (row.rehearsed ? " <i>r</i>" : "")),
    tickfont: { color: colour("ink"), size: isNarrow() ? 11 : 13 },
  });
}

function techniques(data) {
  const rows = byAccuracy(data);
  const base = rows.find((row) => row.role === "base");
  const known = finite(rows.map((row) => row.accuracy));
  const low = known.length ? Math.min(...known) : 0, high = known.length ? Math.max(...known) : 1;
  const left = Math.max(0, low - (high - low) * 0.12 - 0.01);
  const kinds = [
    ["one worker", "ink", "square", (row) => row === base],
    ["kept", "blue", "circle", (row) => row !== base && row.verdict === "kept"],
    ["lost", "red", "diamond", (row) => row !== base && row.verdict === "lost"],
    ["not judged", "muted", "circle-open", (row) => row !== base && !row.verdict],
    ["diverged", "red", "x", (row) => row !== base && row.verdict === "diverged"],
  ];
  const traces = kinds.map(([name, hue, symbol, belongs]) => {
    const chosen = rows.filter(belongs);
    return {
      type: "scatter", mode: "markers", name, x: chosen.map((row) => (row.accuracy === null ? left : row.accuracy)),
      y: chosen.map((row) => rows.indexOf(row)), marker: { color: colour(hue), symbol, size: 12 }, cliponaxis: false,
      error_x: { type: "data", array: chosen.map((row) => row.spread || 0), color: colour(hue), thickness: 1.5, width: 4 },
      customdata: chosen.map((row) => lines(["<b>" + row.name + "</b>", ...row.about])),
      hovertemplate: "%{customdata}<extra></extra>", showlegend: true,
    };
  }).filter((one) => one.x.length);
  const shapes = !base || base.accuracy === null ? [] : [
    { type: "line", x0: base.accuracy, x1: base.accuracy, yref: "paper", y0: 0, y1: 1, layer: "between",
      line: { color: colour("ink"), width: 1.2, dash: "dot" } },
    ...rows.filter((row) => row.accuracy !== null && row !== base).map((row) => ({
      type: "line", x0: base.accuracy, x1: row.accuracy, y0: rows.indexOf(row), y1: rows.indexOf(row), layer: "between",
      line: { color: colour(row.accuracy >= base.accuracy || row.verdict === "kept" ? "blue" : "red"), width: 2 } })),
  ];
  const room = (high - left) * 0.05 || 0.02;
  const annotations = rows.map((row, index) => ({ // the numbers, in a column beside the plot
    x: 1, xref: "paper", xanchor: "right", xshift: isNarrow() ? 56 : 64, y: index, showarrow: false, font: { size: 13 },
    text: row.accuracy === null ? "diverged" : (100 * row.accuracy).toFixed(1) + " %",
  }));
  const rehearsed = rows.some((row) => row.rehearsed) ? " (<i>r</i>: rehearsed)" : "";
  return {
    traces, height: 100 + rows.length * 30,
    layout: layout(axis("test accuracy" + rehearsed, { tickformat: shares, range: [left - room, high + room], tickangle: 0, nticks: isNarrow() ? 4 : 12 }), nameAxis(rows), {
      shapes, annotations, showlegend: true, margin: { l: 60, r: isNarrow() ? 62 : 76, t: 36, b: 48 },
      legend: { orientation: "h", y: 1, yanchor: "bottom", x: 0, font: { size: 12 }, itemclick: false, itemdoubleclick: false },
    }),
  };
}

function speed(data) {
  const rows = data.rows.filter((row) => row.speed !== null).reverse();
  const kinds = [["measured", false], ["rehearsed: one process is all the workers", true]];
  const traces = kinds.map(([name, rehearsed]) => {
    const chosen = rows.filter((row) => row.rehearsed === rehearsed);
    return {
      type: "bar", orientation: "h", name, x: chosen.map((row) => row.speed), y: chosen.map((row) => rows.indexOf(row)),
      marker: rehearsed ? { color: colour("card"), line: { color: colour("muted"), width: 1 },
        pattern: { shape: "/", fgcolor: colour("muted"), bgcolor: colour("card"), size: 6, solidity: 0.25 } } : { color: colour("blue") },
      text: chosen.map((row) => whole(Math.round(row.speed))), textposition: "outside", cliponaxis: false,
      textfont: { color: colour("ink"), size: 12 }, customdata: chosen.map((row) => row.name),
      hovertemplate: "%{customdata}: %{x:,.0f} images/s" + (rehearsed ? "<br>of one process, not of many machines" : "") + "<extra></extra>",
      showlegend: true,
    };
  }).filter((one) => one.x.length);
  const most = Math.max(...finite(rows.map((row) => row.speed)));
  return {
    traces, height: 110 + rows.length * 26,
    layout: layout(axis("images per second", { range: [0, most * (isNarrow() ? 1.4 : 1.2)], nticks: isNarrow() ? 4 : 10 }), nameAxis(rows), {
      bargap: 0.35, margin: { l: 60, r: 16, t: 36, b: 48 },
      showlegend: traces.length > 1 || traces.some((one) => one.name !== "measured"),
      legend: { orientation: "h", y: 1, yanchor: "bottom", x: 0, font: { size: 12 }, itemclick: false, itemdoubleclick: false },
    }),
  };
}
