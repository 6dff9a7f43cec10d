// Makes the tables of figures sortable by a click on a column's name.
for (const table of document.querySelectorAll("table.figures")) {
  const body = table.tBodies[0];
  const original = [...body.rows];
  const heads = [...table.tHead.rows[1].cells];
  heads.forEach((head, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = head.textContent;
    head.replaceChildren(button);
    button.addEventListener("click", () => {
      const next = { none: "descending", descending: "ascending", ascending: "none" };
      const order = next[head.getAttribute("aria-sort") || "none"];
      heads.forEach((other) => other.removeAttribute("aria-sort"));
      if (order === "none") return body.replaceChildren(...original);
      head.setAttribute("aria-sort", order);
      const sign = order === "descending" ? -1 : 1;
      const key = (row) => row.cells[column + 1].dataset.sort;
      body.replaceChildren(...[...original].sort((a, b) =>
        (key(a) === "") - (key(b) === "") || sign * (key(a) - key(b))));
    });
  });
}
