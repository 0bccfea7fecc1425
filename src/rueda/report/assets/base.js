// What all figures share: colours from the style sheet, a calm layout, numbers as people write them.
// Every text in the data has been escaped for plotly's labels already; nothing here writes HTML.
"use strict";

const sections = JSON.parse(document.getElementById("data").textContent);
const narrow = matchMedia("(max-width: 640px)");
const dark = matchMedia("(prefers-color-scheme: dark)");
const coarse = matchMedia("(pointer: coarse)");
let paper = false; // what is printed or exported: always light and wide, and each figure carries its own legend

function isNarrow() {
  return narrow.matches && !paper;
}

function colour(name) {
  const place = paper ? document.getElementById("light") : document.documentElement;
  return getComputedStyle(place).getPropertyValue("--" + name).trim();
}

function font(size) {
  return { family: getComputedStyle(document.body).fontFamily, size: size || 13, color: colour("ink") };
}

function axis(title, more) {
  return {
    title: { text: title, font: { size: 13, color: colour("muted") }, standoff: 8 },
    gridcolor: colour("grid"), linecolor: colour("edge"), tickcolor: colour("edge"), zeroline: false, automargin: true,
    tickfont: { color: colour("muted"), size: 12 }, ...more,
  };
}

function layout(xaxis, yaxis, more) {
  return {
    ...(xaxis && { xaxis, yaxis }), font: font(), showlegend: paper, hovermode: "closest",
    paper_bgcolor: paper ? "#ffffff" : "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
    margin: { l: 56, r: 16, t: 12, b: 48 }, dragmode: coarse.matches ? false : "zoom",
    hoverlabel: { bgcolor: colour("card"), bordercolor: colour("edge"), font: font(13), align: "left" },
    legend: { orientation: "h", xref: "container", x: 0, yref: "container", y: 0, yanchor: "bottom", font: { size: 12 }, bgcolor: "rgba(0,0,0,0)" },
    ...more,
  };
}

function logAxis(title, values, more) {
  return axis(title, { type: "log", tickvals: values, ticktext: values.map(whole), tickangle: 0, ...more });
}

function whole(value) {
  return Math.abs(value) >= 1000 || Number.isInteger(value)
    ? Math.round(value).toLocaleString("en-US") : String(Number(value.toPrecision(3)));
}

function powers(low, high, base) {
  const found = [];
  for (let power = Math.ceil(Math.log(low) / Math.log(base) - 1e-9); Math.pow(base, power) <= high * 1.000001; power++)
    found.push(Math.pow(base, power));
  return found;
}

function oneTwoFive(low, high) {
  return powers(low / 10, high, 10).flatMap((power) => [power, 2 * power, 5 * power])
    .filter((value) => value >= low / 1.3 && value <= high * 1.3);
}

function finite(values) {
  return (values || []).filter((value) => value !== null && Number.isFinite(value));
}

function lines(texts) {
  return texts.join("<br>");
}

// Shares as percentages with as many digits as tell the ticks apart: 88 %, 88.5 %, 89 %.
const shares = ".4~p";

// A long name leaves the figure its room: its middle goes, since names often differ at the end. Entities stay whole.
function brief(text, most) {
  const letters = text.match(/&[^;\s]{1,8};|[^]/gu) || [];
  if (letters.length <= most) return text;
  const tail = Math.floor(most / 3);
  return letters.slice(0, most - tail - 1).join("") + "…" + letters.slice(-tail).join("");
}
