// Asks the search of the built site, as a browser does: node site_search.js WORKER INDEX QUERY ...
// Prints for each query the places that were found, the best first, as JSON.
const fs = require("fs");
const [worker, index, ...queries] = process.argv.slice(2);

let answer, handle;
globalThis.self = globalThis;
globalThis.addEventListener = (_, handler) => (handle = handler);
globalThis.postMessage = (message) => answer(message);
(0, eval)(fs.readFileSync(worker, "utf8"));

function ask(type, data) {
  return new Promise((resolve) => {
    answer = resolve;
    handle({ data: { type, data } });
  });
}

(async () => {
  const { config, docs } = JSON.parse(fs.readFileSync(index, "utf8"));
  await ask(0, { config, docs, options: { suggest: true } }); // 0: set up
  const found = {};
  for (const query of queries) {
    const { data } = await ask(2, query); // 2: a query; a list of pages, each a list of sections
    found[query] = data.items.map((page) => page.map((section) => section.location));
  }
  console.log(JSON.stringify(found));
})();
