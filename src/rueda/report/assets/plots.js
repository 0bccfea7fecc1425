// Convert a figure as Python describes it (report/plot.py) to plotly's traces and layout: apply the chosen views, leave
// out hidden rows, fit the axes to the visible ones, insert the colours of the page.

// Return a copy in which the value at a path, such as ["scene", "zaxis", "range"], is replaced.
function put(given, [name, ...rest], value) {
  const copy = Array.isArray(given) ? [...given] : { ...given };
  copy[name] = rest.length ? put(copy[name], rest, value) : value;
  return copy;
}

function changed(given, changes) {
  return Object.entries(changes).reduce((found, [path, value]) => put(found, path.split("."), value), given);
}

// Limits for the traces that are shown, and whether the axis is logarithmic: `Fit` and `Span` in report/plot.py.
function fitted({ fit, ...axis }, given) {
  const usual = given.filter((span) => !span.is_outlier), spans = usual.length ? usual : given;
  const all = (name) => spans.map((span) => span[name]).filter((value) => value !== undefined);
  const small = all("small").sort((one, other) => one - other);
  if (fit.ratio && small.length && Math.max(...all("large")) / small[Math.floor((small.length - 1) * fit.rank)] >= fit.ratio) {
    const starts = all("starts").filter((some) => some.length);
    const start = Math.max(...starts[0].map((_, index) => Math.min(...starts.map((some) => some[index]))));
    return { ...axis, ...fit.log, range: [start / fit.log_pads[0], Math.max(...all("high")) * fit.log_pads[1]].map(Math.log10) };
  }
  const [low, high] = spans.length ? [Math.min(...all("low")), Math.max(...all("high"))] : [0, 1];
  const pad = (high - low || 0.1) * fit.pad;
  return { ...axis, range: [Math.max(fit.least ?? -Infinity, low - pad), Math.min(fit.most ?? Infinity, high + pad)] };
}

// Move names at the ends of lines apart where they would overlap.
function keptApart(labels, [low, high]) {
  const gap = (high - low) * 0.06;
  const sorted = labels.map((label) => ({ ...label })).sort((one, other) => one.y - other.y);
  sorted.forEach((label, index) => { if (index) label.y = Math.max(label.y, sorted[index - 1].y + gap); });
  for (let index = sorted.length - 1, top = high - gap / 4; index >= 0; index--, top -= gap)
    sorted[index].y = Math.min(sorted[index].y, top);
  return sorted;
}

function build(key, name) {
  const { plots, chosen, hidden } = sections[key];
  const { traces: all, layout: wide, switches, ...rest } = plots[name];
  const views = Object.entries(switches).map(([one, options]) => options[chosen[one]] || Object.values(options)[0]);
  const isSmall = isNarrow();
  const layout = changed(wide, Object.assign({}, ...views.map((view) => view.changes), isSmall && rest.narrow, paper && rest.paper));
  const traces = all.map((trace, index) => views.reduce((found, view) => changed(found, { ...view.all_traces, ...view.traces[index] }), trace))
    .filter((trace) => !hidden.has(trace.row));
  for (const side of ["x", "y"])
    if (layout[side + "axis"]?.fit) {
      const spans = traces.filter((trace) => trace.visible !== false).map((trace) => trace.spans[side]).filter(Boolean);
      layout[side + "axis"] = fitted(layout[side + "axis"], spans);
    }
  const labels = layout.annotations || [];
  if (labels.some((label) => "row" in label))
    layout.annotations = keptApart(labels.filter((label) => !hidden.has(label.row)), layout.yaxis.range);
  const bare = ({ row, spans, ...trace }) => (trace.hovertemplate ? { ...trace, hovertemplate: trace.hovertemplate + "<extra></extra>" } : trace);
  return { traces: traces.map((trace) => themed(bare(trace))), layout: { ...dressed(layout), uirevision: name },
    height: isSmall ? rest.narrow_height : rest.height };
}
