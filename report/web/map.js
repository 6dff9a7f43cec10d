// The map of images: a card with the image at the pointer or at the mark that has the
// keyboard's focus.
(() => {
  const map = document.querySelector(".plane");
  if (!map) return;
  const card = map.querySelector("[data-plane-card]");
  const marks = [...map.querySelectorAll("[data-mark]")];
  const figures = [...document.querySelectorAll(".plane-list figure")];
  const place = (mark) => [mark.x.baseVal.value, mark.y.baseVal.value];
  const shown = () => marks.filter((mark) => !mark.classList.contains("dim"));
  let current;

  function show(mark) {
    if (mark === current) return;
    hide();
    current = mark;
    mark.classList.add("current");
    card.replaceChildren(figures[mark.dataset.mark].cloneNode(true));
    card.hidden = false;
    const box = map.getBoundingClientRect();
    const [x, y] = place(mark).map((v) => v * box.width / 900);
    card.style.left = Math.min(x + 14, box.width - card.offsetWidth - 4) + "px";
    card.style.top = (y + 14 + card.offsetHeight > box.height ? Math.max(4, y - card.offsetHeight - 14) : y + 14) + "px";
  }

  function hide() {
    card.hidden = true;
    if (current) current.classList.remove("current");
    current = undefined;
  }

  function point(event) {
    if (event.target.closest(".plane-card")) return;
    const box = map.getBoundingClientRect();
    const [x, y] = [(event.clientX - box.left) * 900 / box.width, (event.clientY - box.top) * 900 / box.width];
    const within = event.pointerType === "touch" ? 22 * 900 / box.width : 20; // a finger is wide
    let nearest, least = within ** 2;
    for (const mark of shown()) {
      const [a, b] = place(mark);
      const d = (a - x) ** 2 + (b - y) ** 2;
      if (d < least) [nearest, least] = [mark, d];
    }
    if (nearest) show(nearest);
    else hide();
  }
  map.addEventListener("pointermove", point);
  map.addEventListener("pointerdown", point); // a tap does not move
  map.addEventListener("pointerleave", (event) => { if (event.pointerType !== "touch") hide(); });

  // One mark at a time can be reached by Tab; the arrow keys go from mark to mark.
  function reach(mark) {
    for (const other of marks) other.setAttribute("tabindex", other === mark ? "0" : "-1");
  }
  map.addEventListener("focusin", (event) => {
    const mark = event.target.closest("[data-mark]");
    if (mark) show(mark);
  });
  map.addEventListener("focusout", hide);
  map.addEventListener("keydown", (event) => {
    const mark = event.target.closest("[data-mark]");
    const way = { ArrowRight: [1, 0], ArrowLeft: [-1, 0], ArrowDown: [0, 1], ArrowUp: [0, -1] }[event.key];
    if (event.key === "Escape") hide();
    if (!mark || !way) return;
    event.preventDefault();
    event.stopPropagation(); // the page's own keys
    const [x, y] = place(mark);
    let next, least = Infinity;
    for (const other of shown()) {
      const [dx, dy] = [place(other)[0] - x, place(other)[1] - y];
      const along = dx * way[0] + dy * way[1], across = Math.abs(dx * way[1]) + Math.abs(dy * way[0]);
      if (other !== mark && along > 0 && along + 2 * across < least) [next, least] = [other, along + 2 * across];
    }
    if (!next) return;
    reach(next);
    next.focus();
  });
  reach(marks[0]);

  const select = document.querySelector("[data-plane-class]");
  function highlight() {
    hide();
    for (const mark of marks) mark.classList.toggle("dim", Boolean(select.value) && mark.dataset.class !== select.value);
    reach(shown()[0]);
  }
  select.addEventListener("change", highlight);
  if (select.value) highlight(); // a browser may remember the choice

  const axes = document.querySelector("[data-plane-axes]");
  function turn() {
    hide();
    for (const mark of marks) {
      const places = mark.dataset.places.split(" ");
      mark.setAttribute("x", places[axes.value]);
      mark.setAttribute("y", places[Number(axes.value) + 1]);
    }
    const [right, up] = axes.selectedOptions[0].textContent.split(", ");
    document.querySelector("[data-plane-labels]").textContent = `→ ${right}; ↑ ${up}`;
  }
  if (axes) axes.addEventListener("change", turn);
  if (axes && axes.value !== "0") turn();
})();
