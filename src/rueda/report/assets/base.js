// Shared by all figures: the data, the colours of the style sheet, the layout.
// Every text in the data has been escaped for plotly's labels already; nothing here writes HTML.
"use strict";

// Lists and texts that occur several times are in `shared`: {"#": 3} refers to the fourth.
function parsed(text) {
  let shared;
  return JSON.parse(text, (key, value) => {
    if (key === "shared") shared = value;
    return value?.["#"] === undefined ? value : shared[value["#"]];
  });
}

const { sections } = parsed(document.getElementById("data").textContent);
const narrow = matchMedia("(max-width: 640px)");
const dark = matchMedia("(prefers-color-scheme: dark)");
const coarse = matchMedia("(pointer: coarse)");
let paper = false; // while figures are printed or exported: light, wide, and each with its own legend

function isNarrow() {
  return narrow.matches && !paper;
}

function colour(name) {
  const place = paper ? document.getElementById("light") : document.documentElement;
  return getComputedStyle(place).getPropertyValue("--" + name).trim();
}

// Replace `@blue` by the page's blue, only under keys that are colours, where no text of a file can occur.
function themed(value, key) {
  if (typeof value === "string") return value.startsWith("@") && /color$/.test(key) ? colour(value.slice(1)) : value;
  if (Array.isArray(value)) return typeof value[0] === "number" ? value : value.map((part) => themed(part, key));
  if (value && typeof value === "object")
    return Object.fromEntries(Object.entries(value).map(([name, part]) => [name, themed(part, name)]));
  return value;
}

function font(size) {
  return { family: getComputedStyle(document.body).fontFamily, size: size || 13, color: colour("ink") };
}

function axis({ title, ...more }) {
  return {
    title: { text: title, font: { size: 13, color: colour("muted") }, standoff: 8 },
    gridcolor: colour("grid"), linecolor: colour("edge"), tickcolor: colour("edge"), zeroline: false, automargin: true,
    tickfont: { color: colour("muted"), size: 12 }, ...more,
  };
}

function sceneAxis({ title, ...more }) {
  return { title: { text: title }, gridcolor: colour("edge"), color: colour("muted"), showbackground: false, showspikes: false, ...more };
}

function dressed(given) {
  const named = (part) => (typeof part === "object" ? part : { title: part });
  const wanted = themed(given);
  for (const [name, part] of Object.entries(wanted)) {
    if (/^[xy]axis\d*$/.test(name)) wanted[name] = axis(named(part));
    if (/^scene\d*$/.test(name))
      for (const side of ["xaxis", "yaxis", "zaxis"]) part[side] = sceneAxis(named(part[side] || ""));
  }
  return {
    font: font(), showlegend: paper, hovermode: "closest",
    paper_bgcolor: paper ? "#ffffff" : "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
    margin: { l: 56, r: 16, t: 12, b: 48 }, dragmode: coarse.matches ? false : "zoom",
    hoverlabel: { bgcolor: colour("card"), bordercolor: colour("edge"), font: font(13), align: "left" },
    legend: { orientation: "h", xref: "container", x: 0, yref: "container", y: 0, yanchor: "bottom", font: { size: 12 }, bgcolor: "rgba(0,0,0,0)" },
    ...wanted,
  };
}

// A page whose start fails says so, to the reader and to what waits for it.
function tellTrouble(error) {
  const place = document.getElementById("trouble");
  place.textContent = "The figures cannot be drawn (" + error.message + "); use a browser from 2023 or later.";
  place.hidden = false;
  document.documentElement.dataset.ready = "false";
}
