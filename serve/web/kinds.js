"use strict";
// New kinds: groups of remembered images that were judged together.

const day = time => time.slice(0, 10);
const mostReviews = 1000; // of one request

async function review(ids, what) {
  for (let i = 0; i < ids.length; i += mostReviews) {
    await json("/v1/reviews", ids.slice(i, i + mostReviews).map(id => ({id, by: at("by").value.trim(), ...what})));
  }
  tellReviews();
}

function showKind(g, parent) {
  const box = element("div", undefined, parent);
  element("h3", `${images(g.images)}, nearest to ${g.nearest}`, box);
  element("p", day(g.first) === day(g.last) ? day(g.first) : `${day(g.first)} to ${day(g.last)}`, box).className = "note";
  const list = element("ul", undefined, box);
  list.className = "mosaic";
  for (const v of g.typical) picture(v.kept && "/v1/images/" + v.image, v.name, element("li", undefined, list));
  if (!g.waiting) {
    element("p", "All of them are reviewed.", box).className = "note";
    return;
  }
  const form = element("form", undefined, box), label = element("label", "Name ", form), name = element("input", undefined, label);
  form.className = "tools";
  Object.assign(name, {type: "text", size: 16, autocomplete: "off", required: true});
  name.setAttribute("list", "known");
  const button = element("button", g.waiting < g.images ? `A class of the ${images(g.waiting)} without a review` : "A class of these images", form);
  const told = element("span", undefined, form), ids = g.ids.slice(0, g.waiting);
  told.setAttribute("role", "status");
  let given = "";
  form.onsubmit = async event => {
    event.preventDefault();
    button.disabled = true;
    try {
      const class_ = name.value.trim();
      if (given) await review(ids, {verdict: "undo"});
      else await review(ids, classes.includes(class_) ? {label: class_} : {new: class_});
      told.textContent = given ? "Not any more." : `${images(ids.length)}: it is ${class_}.`;
      given = given ? "" : class_;
      if (given && !known().includes(given)) said.push(given);
      showClasses();
      name.disabled = Boolean(given);
      button.textContent = given ? "Undo" : "A class of these images";
      await fill();
    } catch (error) {
      told.textContent = error.message;
    }
    button.disabled = false;
  };
}

at("look").onclick = async () => {
  const query = new URLSearchParams({detector, source: at("kinds-source").value.trim()}), days = Number(at("window").value);
  if (days) query.set("from", new Date(Date.now() - days * 86400e3).toISOString());
  at("look").disabled = true;
  at("kinds-said").textContent = "Images are judged together.";
  at("found").replaceChildren();
  try {
    const k = await json("/v1/discover?" + query);
    at("kinds-said").textContent = `${images(k.images)}: ${k.new.toLocaleString("en")} called new, at least ${k.new_at_least.toLocaleString("en")} new (95%).`;
    for (const note of k.notes || []) element("p", note, at("found")).className = "note";
    for (const g of k.groups) showKind(g, at("found"));
    if (!k.groups.length) element("p", "No group of new images is found.", at("found"));
  } catch (error) {
    at("kinds-said").textContent = error.message;
  }
  at("look").disabled = false;
};
at("kinds-tools").onsubmit = event => { event.preventDefault(); at("look").click(); };
