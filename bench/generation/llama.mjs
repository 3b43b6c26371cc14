// SPDX-License-Identifier: Apache-2.0

// Generates with llama.cpp, as bench/generation asks by lines on the standard input: TEXTS PROMPT NEW, of which TEXTS
// is 1. Answers each with the seconds that it took. The cache of keys and values is float32, as in Lockstep.
//
//     node llama.mjs node_modules/node-llama-cpp/dist/index.js FILE.gguf THREADS
import path from "node:path";
import readline from "node:readline";

const [lib, file, threads] = process.argv.slice(2);
const {getLlama} = await import(path.resolve(lib));
const llama = await getLlama({gpu: false, build: "never", logLevel: "error", maxThreads: +threads});
const model = await llama.loadModel({modelPath: file, defaultContextFlashAttention: false,
    experimentalDefaultContextKvCacheKeyType: "F32", experimentalDefaultContextKvCacheValueType: "F32"});
const context = await model.createContext({contextSize: 1024, batchSize: 512, threads: +threads});
const sequence = context.getSequence();
console.log(`ready llama.cpp ${llama.llamaCppRelease.release}`);
for await (const line of readline.createInterface({input: process.stdin})) {
    const [texts, length, count] = line.split(" ").map(Number);
    if (texts !== 1) throw new Error("want one text");
    await sequence.clearHistory();
    const prompt = Array.from({length}, (_, i) => i % 40000);
    const start = performance.now();
    let n = 0;
    for await (const _ of sequence.evaluate(prompt, {temperature: 0, yieldEogToken: true})) if (++n === count) break;
    console.log((performance.now() - start) / 1000);
}
process.exit(0);
