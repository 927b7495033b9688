// The conversation of tests/server/test_client_conversations.py with Vercel's npm package ai.
import assert from "node:assert/strict";
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { APICallError, Output, generateText, jsonSchema, stepCountIs, streamText, tool } from "ai";

const { url, key, model: name, question, demand, result, answer, args, schema } = JSON.parse(process.argv[2]);
const place = { baseURL: `${url}/v1`, apiKey: key };
const openai = createOpenAI(place);
const compatible = createOpenAICompatible({ name: "vivace", ...place, supportsStructuredOutputs: true });

for (const model of [compatible(name), openai.chat(name), openai.responses(name)]) {
  const asked = [];
  const look = tool({
    description: "Look up the weather",
    inputSchema: jsonSchema(schema),
    execute: async (input) => (asked.push(input), result),
  });
  const stream = streamText({ model, prompt: question, tools: { look }, stopWhen: stepCountIs(2), maxRetries: 0 });
  let deltas = 0;
  for await (const part of stream.fullStream) {
    assert.notEqual(part.type, "error", String(part.error));
    deltas += part.type === "tool-input-delta";
  }
  assert.ok(deltas > 2);
  assert.deepEqual(asked, [args]);
  assert.equal(await stream.text, answer);

  const output = Output.object({ schema: jsonSchema(schema) });
  const parsed = await generateText({ model, prompt: demand, output, maxRetries: 0 });
  assert.deepEqual(parsed.output, args);

  const refused = generateText({ model, prompt: demand, temperature: -1, maxRetries: 0 });
  await assert.rejects(refused, (error) => APICallError.isInstance(error) && error.statusCode === 400);
}
