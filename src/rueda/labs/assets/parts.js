// Shows the parts of a figure that moves: an element for each, and only what has changed is touched.

function partsPlace(stage) {
  return stage.querySelector(".parts");
}

// The same figure with other numbers keeps its element, in which plotly changes what differs; only its words are new.
function renew(old, fresh) {
  const [before, after] = [old.querySelector("figcaption"), fresh.querySelector("figcaption")];
  for (const kind of ["h3", ".remark"]) {
    const [one, other] = [before.querySelector(kind), after.querySelector(kind)];
    if (one && other) { if (one.textContent !== other.textContent) one.textContent = other.textContent; }
    else if (one) one.remove();
    else if (other) before.querySelector("h3").after(other);
  }
}

function fill(stage, parts) {
  const key = stage.dataset.section, place = partsPlace(stage);
  const section = (sections[key] ||= { plots: {}, hidden: new Set(), chosen: {} });
  section.plots = Object.fromEntries(parts.filter((part) => part.plot).map((part) => [part.plot, part.data]));
  parts.forEach((part, index) => {
    const old = place.children[index], fresh = document.createElement("div");
    fresh.className = part.half ? "part half" : "part";
    fresh.innerHTML = part.html;
    fresh.dataset.plot = part.plot || "";
    if (old && part.plot && old.dataset.plot === part.plot) renew(old, fresh);
    else if (!old || old.dataset.html !== part.html) {
      if (old) old.replaceWith(fresh); else place.append(fresh);
      fresh.dataset.html = part.html;
      fresh.querySelectorAll("table.sortable").forEach(sortable);
      switches(fresh, key);
    }
  });
  while (place.children.length > parts.length) place.lastElementChild.remove();
}

async function drawStage(stage) {
  watchScenes();
  for (const place of stage.querySelectorAll(".plot"))
    if (!place.matches(".scene") || alive.has(place)) await draw(...whose(place));
}

function switches(element, key) {
  const redraw = (name) => Object.keys(sections[key].plots).filter((one) => name in sections[key].plots[one].switches).forEach((one) => draw(key, one));
  element.querySelectorAll(".switch").forEach((group) => {
    const buttons = [...group.querySelectorAll("button")];
    buttons.forEach((button) => button.addEventListener("click", () => {
      buttons.forEach((other) => other.setAttribute("aria-pressed", String(other === button)));
      sections[key].chosen[group.dataset.switch] = button.dataset.view;
      redraw(group.dataset.switch);
    }));
  });
}

function redrawWhenThePageChanges() {
  for (const query of [narrow, dark]) query.addEventListener("change", () => drawAll());
}
