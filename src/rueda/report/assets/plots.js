// Figures that Python describes whole: the page gives them its colours, so that light and dark both fit.

// Only where no text of a file can stand: `@blue` where a colour belongs, `¶` for a new line in what a hover shows.
function themed(value, key) {
  if (typeof value === "string") {
    if (/color$/.test(key)) return value.startsWith("@") ? colour(value.slice(1)) : value;
    return key === "hovertemplate" ? value.replaceAll("¶", "<br>") : value;
  }
  if (Array.isArray(value)) return typeof value[0] === "number" ? value : value.map((part) => themed(part, key === "text" ? "hovertemplate" : key));
  if (value && typeof value === "object")
    return Object.fromEntries(Object.entries(value).map(([name, part]) => [name, themed(part, name)]));
  return value;
}

function side(more) {
  const { title, ...rest } = typeof more === "string" ? { title: more } : more;
  return { title: { text: title }, gridcolor: colour("edge"), color: colour("muted"), showbackground: false, showspikes: false, ...rest };
}

function dressed(given) {
  const wanted = {};
  for (const [name, part] of Object.entries(themed(given))) {
    if (/^[xy]axis\d*$/.test(name)) {
      const { title, ...more } = typeof part === "string" ? { title: part } : part;
      wanted[name] = axis(title, more);
    } else if (/^scene\d*$/.test(name)) {
      const axes = Object.fromEntries(["xaxis", "yaxis", "zaxis"].map((one) => [one, side(part[one] || "")]));
      wanted[name] = { ...part, ...axes };
    } else wanted[name] = part;
  }
  return layout(undefined, undefined, wanted);
}

// Paths with dots: {"scene.zaxis.range": [0, 1]}.
function changed(given, changes) {
  const found = structuredClone(given);
  for (const [path, value] of Object.entries(changes)) {
    const names = path.split(".");
    const last = names.pop();
    names.reduce((part, name) => part[name], found)[last] = value;
  }
  return found;
}

function plot(name) {
  return (data) => {
    const { traces: all, layout: wide, views, narrow: small, ...size } = data.plots[name];
    const isSmall = isNarrow();
    const view = views[data.view[name] || 0] || { changes: {} };
    const given = changed(wide, { ...view.changes, ...(isSmall ? small : {}) });
    const traces = view.visible ? all.map((trace, index) => ({ ...trace, visible: view.visible[index] })) : all;
    const height = isSmall ? size.narrow_height : size.height;
    const quiet = (trace) => (trace.hovertemplate ? { ...trace, hovertemplate: trace.hovertemplate + "<extra></extra>" } : trace);
    return { traces: traces.map((trace) => quiet(themed(trace))), layout: { ...dressed(given), uirevision: name }, height };
  };
}
