const make = (kind, text, ...inside) => {
  const element = document.createElement(kind);
  if (text) element.textContent = text;
  element.append(...inside);
  return element;
};

function resolved(schema, all, depth) {
  if (!schema || depth > 6) return schema;
  if (schema.$ref) return resolved(all[schema.$ref.split("/").pop()], all, depth + 1);
  if (Array.isArray(schema)) return schema.map((part) => resolved(part, all, depth + 1));
  if (typeof schema !== "object") return schema;
  return Object.fromEntries(Object.entries(schema).map(([name, part]) => [name, resolved(part, all, depth + 1)]));
}

async function show() {
  const description = await (await fetch("/openapi.json")).json();
  document.getElementById("title").textContent = description.info.title + " " + description.info.version;
  for (const [path, methods] of Object.entries(description.paths)) {
    for (const [method, facts] of Object.entries(methods)) {
      const details = make("details", "", make("summary", "", make("code", method.toUpperCase() + " " + path), " " + (facts.summary || "")));
      if (facts.description) details.append(make("p", facts.description));
      const body = facts.requestBody && facts.requestBody.content["application/json"];
      if (body) {
        const schema = resolved(body.schema, (description.components || {}).schemas || {}, 0);
        details.append(make("pre", JSON.stringify(schema.properties || schema, null, 2)));
      }
      document.getElementById("routes").append(details);
    }
  }
}
show();
