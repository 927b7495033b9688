// The conversation of tests/server/test_client_conversations.py with the npm package openai.
import assert from "node:assert/strict";
import OpenAI from "openai";

const { url, key, model, question, demand, result, answer, args, schema } = JSON.parse(process.argv[2]);
const client = new OpenAI({ baseURL: `${url}/v1`, apiKey: key, maxRetries: 0 });
const tools = [{ type: "function", function: { name: "look", parameters: schema } }];
const messages = [{ role: "user", content: question }];

const stream = client.chat.completions.stream({ model, messages, tools });
let deltas = 0;
stream.on("tool_calls.function.arguments.delta", () => deltas++);
const said = await stream.finalMessage();
assert.ok(deltas > 2);
assert.deepEqual(JSON.parse(said.tool_calls[0].function.arguments), args);
messages.push(said, { role: "tool", tool_call_id: said.tool_calls[0].id, content: result });
const told = await client.chat.completions.create({ model, messages, tools });
assert.equal(told.choices[0].message.content, answer);

const asked = { model, messages: [{ role: "user", content: demand }] };
const format = { type: "json_schema", json_schema: { name: "forecast", schema, strict: true } };
const parsed = await client.chat.completions.parse({ ...asked, response_format: format });
assert.deepEqual(parsed.choices[0].message.parsed, args);

const response = await client.responses.create({ model, input: question, tools: [{ type: "function", ...tools[0].function }] });
assert.deepEqual(JSON.parse(response.output.at(-1).arguments), args);

await assert.rejects(client.chat.completions.create({ ...asked, temperature: -1 }), (error) => {
  assert.ok(error instanceof OpenAI.BadRequestError);
  return error.param === "temperature";
});
