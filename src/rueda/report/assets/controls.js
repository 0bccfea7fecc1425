// What a reader can do: sort a table, choose a view of a figure, hide rows. Unpacking, which plotly needs first.

async function unpacked(id) {
  const packed = Uint8Array.from(atob(document.getElementById(id).textContent), (letter) => letter.charCodeAt(0));
  return new Response(new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"))).text();
}

async function loadPlotly() {
  const script = document.createElement("script");
  script.textContent = await unpacked("plotly");
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
