// The page: unpack plotly, draw every figure, handle clicks. With `#png` in the address the figures become images.

async function unpack() {
  const packed = Uint8Array.from(atob(document.getElementById("plotly").textContent), (letter) => letter.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  const script = document.createElement("script");
  script.textContent = await new Response(stream).text();
  document.head.append(script);
}

function sortable(table) {
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, column) => head.querySelector("button").addEventListener("click", () => {
    const down = head.getAttribute("aria-sort") ? head.getAttribute("aria-sort") === "ascending" : column > 0;
    heads.forEach((other) => other.removeAttribute("aria-sort"));
    head.setAttribute("aria-sort", down ? "descending" : "ascending");
    const value = (row) => row.cells[column].dataset.value;
    const compare = (one, other) => {
      const [a, b] = [value(one), value(other)];
      if (a === "" || b === "") return (a === "") - (b === ""); // rows without a value stay last
      const order = isNaN(a) || isNaN(b) ? a.localeCompare(b) : a - b;
      return down ? -order : order;
    };
    table.tBodies[0].append(...[...table.tBodies[0].rows].sort(compare));
  }));
}

function listen(section) {
  const key = section.dataset.section, data = sections[key];
  const redraw = (isMeant) => Object.keys(data.plots).filter((name) => isMeant(data.plots[name])).forEach((name) => {
    draw(key, name);
    const place = document.getElementById(key + "-" + name);
    if (place.matches(".scene")) pictureLater(place);
  });
  section.querySelectorAll("table.sortable").forEach(sortable);
  section.querySelectorAll(".switch").forEach((group) => {
    const name = group.dataset.switch, buttons = [...group.querySelectorAll("button")];
    buttons.forEach((button) => button.addEventListener("click", () => {
      buttons.forEach((other) => other.setAttribute("aria-pressed", String(other === button)));
      data.chosen[name] = button.dataset.view;
      redraw((plot) => name in plot.switches);
    }));
  });
  section.querySelectorAll(".chip").forEach((chip) => chip.addEventListener("click", () => {
    const row = Number(chip.dataset.row);
    if (!data.hidden.delete(row)) data.hidden.add(row);
    chip.setAttribute("aria-pressed", String(!data.hidden.has(row)));
    redraw((plot) => plot.traces.some((trace) => "row" in trace));
  }));
}

async function start() {
  for (const data of Object.values(sections)) Object.assign(data, { hidden: new Set(), chosen: {} });
  document.querySelectorAll("[data-section]").forEach(listen);
  await unpack();
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

start().catch((error) => {
  const place = document.getElementById("trouble");
  place.textContent = "The figures cannot be drawn (" + error.message + "); use a browser from 2023 or later.";
  place.hidden = false;
  document.documentElement.dataset.ready = "false";
});
