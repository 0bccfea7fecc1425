// The page: unpack plotly, have every figure drawn, answer clicks. `#png` instead turns the figures into images.

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
      if (a === "" || b === "") return (a === "") - (b === ""); // what was not measured stays last
      const order = isNaN(a) || isNaN(b) ? a.localeCompare(b) : a - b;
      return down ? -order : order;
    };
    table.tBodies[0].append(...[...table.tBodies[0].rows].sort(compare));
  }));
}

function press(buttons, chosen) {
  buttons.forEach((button) => button.setAttribute("aria-pressed", String(button === chosen)));
}

function listen(section) {
  const data = sections[section.dataset.section];
  const redraw = () => data.figures.filter((name) => ["progress", "rate", "batch"].includes(name))
    .forEach((name) => draw(section.dataset.section, name));
  section.querySelectorAll("table.sortable").forEach(sortable);
  for (const kind of ["axis", "measure"]) {
    const buttons = [...section.querySelectorAll(`[data-${kind}]`)];
    buttons.forEach((button) => button.addEventListener("click", () => {
      press(buttons, button);
      data[kind] = button.dataset[kind];
      redraw();
    }));
  }
  section.querySelectorAll("figure").forEach((figure) => {
    const buttons = [...figure.querySelectorAll("[data-view]")];
    const name = figure.querySelector(".plot").dataset.figure;
    buttons.forEach((button) => button.addEventListener("click", () => {
      press(buttons, button);
      data.view[name] = Number(button.dataset.view);
      draw(section.dataset.section, name);
      figure.querySelectorAll(".scene").forEach(pictureLater);
    }));
  });
  section.querySelectorAll(".chip").forEach((chip) => chip.addEventListener("click", () => {
    const row = Number(chip.dataset.row);
    if (!data.hidden.delete(row)) data.hidden.add(row);
    chip.setAttribute("aria-pressed", String(!data.hidden.has(row)));
    redraw();
  }));
}

async function start() {
  for (const data of Object.values(sections)) {
    const there = Object.keys(measures).filter((name) => data.lines.some((line) => line.progress[name]));
    const order = ["test_accuracy", "test_loss", "train_accuracy", "train_loss"];
    Object.assign(data, { hidden: new Set(), view: {}, axis: "epochs", measure: order.find((name) => there.includes(name)) });
  }
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
