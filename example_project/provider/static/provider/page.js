"use strict";

const urls = document.body.dataset;
const byId = (id) => document.getElementById(id);

const WHY = {
  key_limit: "waits: all permits of the account are in use",
  group_limit: "waits: all permits of this group are in use",
  fair_share: "waits: what is free belongs to other groups",
  paused: "paused by an operator",
  unknown_key: "waits: the account has no limit yet",
};
const MOST_SLOTS = 40;

// ------------------------------------------------------------------------------------------------------- what it shows

function show(accounts) {
  for (const cell of document.querySelectorAll("[data-total]")) {
    const name = cell.dataset.total;
    setCount(cell, name, accounts.reduce((sum, account) => sum + account[name], 0));
  }
  const cards = byId("cards");
  const shown = new Set(accounts.map((account) => account.name));
  for (const card of [...cards.children]) {
    if (!shown.has(card.dataset.name)) card.remove();
  }
  accounts.forEach((account, position) => {
    let card = [...cards.children].find((other) => other.dataset.name === account.name);
    if (!card) {
      card = copyOf("card");
      card.dataset.name = account.name;
      card.querySelector("h2").textContent = account.name;
      cards.insertBefore(card, cards.children[position] ?? null);
    }
    fill(card, account);
  });
  byId("empty").hidden = accounts.length > 0;
}

function fill(card, account) {
  card.querySelector(".limit").textContent = account.limit === null ? "no limit" : `${account.limit} at once`;
  for (const cell of card.querySelectorAll("[data-count]")) {
    setCount(cell, cell.dataset.count, account[cell.dataset.count]);
  }
  const slots = card.querySelector(".slots");
  const wanted = Math.min(Math.max(account.limit ?? 0, account.running, 1), MOST_SLOTS);
  while (slots.children.length < wanted) slots.append(document.createElement("i"));
  while (slots.children.length > wanted) slots.lastChild.remove();
  [...slots.children].forEach((slot, position) => slot.classList.toggle("on", position < account.running));
  card.querySelector("ul").replaceChildren(...account.groups.map(lineOf));
}

function lineOf(group) {
  const line = copyOf("group");
  line.querySelector("strong").textContent = group.name || "calls";
  line.querySelector(".ceiling").textContent = group.ceiling === null ? "" : `${group.ceiling} at once`;
  line.querySelector(".counts").textContent = `${group.queued} waiting · ${group.running} running`;
  const why = line.querySelector(".why");
  why.textContent = WHY[group.blocked] ?? group.blocked ?? "";
  why.classList.toggle("paused", group.blocked === "paused");
  return line;
}

function setCount(cell, name, count) {
  cell.textContent = count.toLocaleString("en");
  if (name === "refusals") {
    cell.classList.toggle("good", count === 0);
    cell.classList.toggle("bad", count > 0);
  }
}

function copyOf(id) {
  return byId(id).content.firstElementChild.cloneNode(true);
}

// ------------------------------------------------------------------------------------------------------ what it asks

async function look() {
  try {
    const response = await fetch(urls.stateUrl, { signal: AbortSignal.timeout(10_000) });
    if (!response.ok) throw new Error(`The server answers with an error (${response.status}).`);
    show((await response.json()).accounts);
    say("");
  } catch (error) {
    say(error instanceof TypeError || error.name === "TimeoutError" ? "The server does not answer." : error.message);
  }
  setTimeout(look, 1000);
}

function say(trouble) {
  byId("trouble").hidden = !trouble;
  byId("trouble").textContent = trouble && `${trouble} What you see is old; it is asked again every second.`;
  byId("live").classList.toggle("stale", Boolean(trouble));
  if (!trouble) byId("live").setAttribute("aria-busy", "false");
}

// ------------------------------------------------------------------------------------------------------ what it sends

async function enqueue(event) {
  event.preventDefault();
  const form = event.target;
  const button = form.querySelector("button");
  const given = new FormData(form);
  const accounts = given.getAll("account");
  const count = Number(given.get("count"));
  if (accounts.length === 0) return answer("Choose an account.", false);
  button.disabled = true;
  try {
    const response = given.get("kind") === "reports" ? await sendReports(given) : await sendItems(given, accounts, count);
    if (response.ok) {
      answer(`Enqueued ${count} for ${accounts.join(", ")}.`, true);
    } else {
      answer(await reason(response), false);
    }
  } catch {
    answer("The server does not answer: nothing was enqueued, or nobody knows.", false);
  } finally {
    button.disabled = false;
  }
}

function sendItems(given, accounts, count) {
  const group = given.get("kind");
  const items = accounts.flatMap((key) =>
    Array.from({ length: count }, () => ({ key, group, body: { pages: 1 + Math.floor(Math.random() * 5) } })),
  );
  return fetch(urls.itemsUrl, {
    method: "POST",
    headers: { "Content-Type": "application/json", "X-CSRFToken": given.get("csrfmiddlewaretoken") },
    body: JSON.stringify(items),
  });
}

function sendReports(given) {
  return fetch(urls.reportsUrl, { method: "POST", body: given });
}

async function reason(response) {
  const told = await response.json().catch(() => ({}));
  const detail = told.detail ?? `the server answers with an error (${response.status})`;
  return response.status === 403 ? `Not allowed: ${detail} Load the page again and log in.` : `Not enqueued: ${detail}`;
}

function answer(text, isGood) {
  const line = byId("answer");
  line.textContent = text;
  line.className = isGood ? "good" : "bad";
}

byId("enqueue")?.addEventListener("submit", enqueue);
look();
