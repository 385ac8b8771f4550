"use strict";
// Sorting and filtering of the tables. Without this script they stand in the order of the study.
const valueOf = (row, column) => {
  const cell = row.cells[column];
  const text = cell.textContent.trim();
  if (text === "-" || text === "") return null;
  if (cell.dataset.value !== undefined) return Number(cell.dataset.value);
  const number = text.replaceAll(",", "").replaceAll("−", "-").match(/^[<>]?\s*([+-]?\d+(\.\d+)?)/);
  return number ? Number(number[1]) : text;
};

const compare = (a, b) => {
  if (typeof a === "number" && typeof b === "number") return a - b;
  return String(a).localeCompare(String(b), "en", { numeric: true });
};

// First ascending, then descending, then the order of the study; what has no value stays at the end.
const sortBy = (table, column) => {
  const heads = [...table.tHead.rows[0].cells];
  const before = heads[column].getAttribute("aria-sort");
  const next = { ascending: "descending", descending: null }[before] ?? (before ? null : "ascending");
  heads.forEach((head) => head.removeAttribute("aria-sort"));
  if (next) heads[column].setAttribute("aria-sort", next);
  const sign = next === "descending" ? -1 : 1;
  const rows = [...table.tBodies[0].rows].sort((one, other) => {
    const inStudy = one.dataset.place - other.dataset.place;
    if (!next) return inStudy;
    const [a, b] = [valueOf(one, column), valueOf(other, column)];
    if (a === null || b === null) return (a === null) - (b === null) || inStudy;
    return sign * compare(a, b) || inStudy;
  });
  table.tBodies[0].append(...rows);
};

// The pieces of text in a row, apart from one another, behind a heading.
const textOf = (row, heading) => {
  const pieces = [heading];
  const walker = document.createTreeWalker(row, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) pieces.push(walker.currentNode.data);
  return pieces.join(" ");
};

// Whether a word of the text starts with what was typed: "em" finds "EM routing" and no "systems".
const startsIn = (text, typed) => {
  for (let at = text.indexOf(typed); at >= 0; at = text.indexOf(typed, at + 1)) {
    if (at === 0 || !/[\p{L}\p{N}]/u.test(text[at - 1]) || !/[\p{L}\p{N}]/u.test(typed[0])) return true;
  }
  return false;
};

// One filter for the tables of a group: a row is searched together with the heading of its table.
const addFilter = (group) => {
  const rows = [...group.querySelectorAll("table.data tbody tr")];
  if (rows.length <= 3) return;
  const sheets = [...group.querySelectorAll(".sheet")];
  const opened = new Map(sheets.map((sheet) => [sheet, sheet.open]));
  const bar = document.createElement("div");
  bar.className = "filter";
  const input = document.createElement("input");
  input.type = "search";
  input.placeholder = "Filter, for example: em mnist";
  input.setAttribute("aria-label", "Filter the rows");
  const count = document.createElement("span");
  count.setAttribute("role", "status");
  bar.append(input, count);
  input.addEventListener("input", () => {
    const words = input.value.toLowerCase().replaceAll("−", "-").split(/\s+/).filter(Boolean);
    for (const row of rows) {
      const heading = row.closest(".sheet").querySelector("summary, h4")?.firstChild.textContent ?? "";
      const text = textOf(row, heading).toLowerCase().replaceAll("−", "-");
      row.hidden = !words.every((word) => startsIn(text, word));
    }
    for (const sheet of sheets) {
      sheet.hidden = [...sheet.querySelectorAll("tbody tr")].every((row) => row.hidden);
      if (sheet.tagName === "DETAILS") sheet.open = words.length ? true : opened.get(sheet);
    }
    const left = rows.filter((row) => !row.hidden).length;
    count.textContent = words.length ? `${left} of ${rows.length} rows` : "";
  });
  sheets[0].before(bar);
};

for (const table of document.querySelectorAll("table.data")) {
  [...table.tBodies[0].rows].forEach((row, place) => { row.dataset.place = place; });
  [...table.tHead.rows[0].cells].forEach((head, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...head.childNodes);
    button.addEventListener("click", () => sortBy(table, column));
    head.append(button);
  });
}
document.querySelectorAll(".group").forEach(addFilter);

// A link to a cell opens it; browsers that do not do so by themselves need this.
const openTarget = () => {
  const target = location.hash.length > 1 && document.getElementById(decodeURIComponent(location.hash.slice(1)));
  const details = target && target.closest("details");
  if (details && !details.open) {
    details.open = true;
    target.scrollIntoView();
  }
};
addEventListener("hashchange", openTarget);
openTarget();
