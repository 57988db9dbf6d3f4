// A complete task with independent clients: ethers.js signs and sends, cast sends and reads,
// @openzeppelin/merkle-tree builds the claim tree. The contracts are deployed from abi/ on anvil.
// Every balance is compared with the expected one, to the unit.
//
// usage: node scripts/clients.mjs     exit code 1 if anything differs

import { execFile, spawn } from "node:child_process";
import { readFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";
import { StandardMerkleTree } from "@openzeppelin/merkle-tree";
import { AbiCoder, ContractFactory, JsonRpcProvider, Signature, ZeroHash, id as digest, keccak256 } from "ethers";

const folder = join(dirname(fileURLToPath(import.meta.url)), "..");
const program = (name) => join(folder, "node_modules", "@foundry-rs", `${name}-linux-amd64`, "bin", name);
const FLN = 10n ** 18n;
const WINDOW_MS = 60_000;
const DEADLINE_MS = 60_000;
const TASK = digest("a task of two rounds");

function must(what, got, wanted) {
  if (got === wanted) return;
  throw new Error(`${what}: got ${got}, expected ${wanted}`);
}

// ------------------------------------------------------------------------------------------- chain

// Starts anvil on a free port; it ends with this process.
async function chain() {
  const anvil = spawn(program("anvil"), ["--port", "0"], { stdio: ["ignore", "pipe", "inherit"] });
  process.on("exit", () => anvil.kill("SIGKILL"));
  for (const signal of ["SIGINT", "SIGTERM", "SIGHUP"]) process.on(signal, () => process.exit(1));
  setTimeout(() => fail(new Error(`timed out after ${DEADLINE_MS} ms`)), DEADLINE_MS).unref();
  return new Promise((listening, refused) => {
    let output = "";
    anvil.stdout.on("data", (text) => {
      output += text;
      const found = output.match(/Listening on (127\.0\.0\.1:\d+)/);
      if (found) listening(`http://${found[1]}`);
    });
    anvil.on("error", refused);
    anvil.on("exit", (code) => refused(new Error(`anvil exited with code ${code} before it listened:\n${output}`)));
  });
}

function fail(cause) {
  console.error(`error: ${cause.stack ?? cause}`);
  process.exit(1);
}

async function deployMarket(url) {
  const provider = new JsonRpcProvider(url, undefined, { staticNetwork: true, cacheTimeout: -1 });
  provider.pollingInterval = 10;
  const names = ["deployer", "buyer", "coordinator", "arbiter", "ada", "ben", "cy", "stranger"];
  const signers = {};
  for (const [i, name] of names.entries()) signers[name] = await provider.getSigner(i);
  const deploy = async (name, ...args) => {
    const { abi, bytecode } = JSON.parse(readFileSync(join(folder, "abi", `${name}.json`), "utf8"));
    const contract = await new ContractFactory(abi, bytecode, signers.deployer).deploy(...args);
    return contract.waitForDeployment();
  };
  const token = await deploy("FlorinToken", signers.deployer.address, 1_000_000n * FLN);
  const market = await deploy("Market", token.target);
  const cast = async (...args) => {
    const { stdout } = await promisify(execFile)(program("cast"), [...args, "--rpc-url", url]);
    return stdout.trim();
  };
  for (const name of ["buyer", "coordinator", "ada", "ben", "cy"]) {
    await sent(token.transfer(signers[name].address, 2_000n * FLN));
  }
  return { provider, signers, token, market, cast };
}

async function sent(transaction) {
  return (await transaction).wait();
}

// Expects a custom error by its name in the ABI.
async function expectError(what, name, call) {
  const error = await call.then(() => undefined, (cause) => cause);
  must(what, error?.revert?.name ?? error, name);
}

// ------------------------------------------------------------------------------------------- steps

// The buyer only signs; another account sends the permit and the terms.
async function open({ provider, signers, token, market }) {
  const { chainId } = await provider.getNetwork();
  const domain = (contract) => ({ name: "Florin", version: "1", chainId, verifyingContract: contract.target });
  const deadline = BigInt((await provider.getBlock("latest")).timestamp + 3_600);
  const [buyer, value] = [signers.buyer.address, 1_200n * FLN];
  const field = (name, type) => ({ name, type });
  const permit = [field("owner", "address"), field("spender", "address"), field("value", "uint256"),
    field("nonce", "uint256"), field("deadline", "uint256")];
  const allowed = { owner: buyer, spender: market.target, value, nonce: 0n, deadline };
  const { v, r, s } = Signature.from(await signers.buyer.signTypedData(domain(token), { Permit: permit }, allowed));
  await sent(token.connect(signers.stranger).permit(buyer, market.target, value, deadline, v, r, s));
  const terms = {
    task: TASK, buyer, coordinator: signers.coordinator.address, arbiter: signers.arbiter.address,
    data: 1_000n * FLN, infrastructure: 200n * FLN, rounds: 2n, perNatMax: 100n * FLN, floorShare: 200_000n,
    bondMin: 10n * FLN, debitMax: 5n * FLN, stakeMin: 0n,
    challengeMs: WINDOW_MS, unbondMs: WINDOW_MS, expires: deadline * 1_000n,
  };
  const order = ["task", "buyer", "coordinator", "arbiter"];
  const fields = Object.keys(terms).map((name) => {
    if (name === "task") return field(name, "bytes32");
    if (order.includes(name)) return field(name, "address");
    if (["rounds", "floorShare"].includes(name)) return field(name, "uint32");
    return field(name, name.endsWith("Ms") || name === "expires" ? "uint64" : "uint128");
  });
  const types = { OpenTask: [...fields, field("deadline", "uint64")] };
  const until = deadline * 1_000n;
  const signature = await signers.buyer.signTypedData(domain(market), types, { ...terms, deadline: until });
  const other = { ...terms, data: terms.data - 1n };
  const stranger = market.connect(signers.stranger);
  await expectError("terms that were not signed", "InvalidSignature", stranger.openTaskFor.staticCall(other, until, signature));
  await sent(stranger.openTaskFor(terms, until, signature));
  must("the buyer's wallet after opening", await token.balanceOf(buyer), 800n * FLN);
  await expectError("the same terms again", "TaskExists", stranger.openTaskFor.staticCall(terms, until, signature));
}

// Bonds Ada and Ben with cast.
async function bond({ signers, token, market, cast }) {
  for (const name of ["ada", "ben"]) {
    const from = ["--unlocked", "--from", signers[name].address];
    await cast("send", ...from, token.target, "approve(address,uint256)", market.target, (20n * FLN).toString());
    await cast("send", ...from, market.target, "bond(bytes32,uint128)", TASK, (20n * FLN).toString());
  }
  const output = await cast("call", market.target, "bondOf(bytes32,address)(uint128,uint64)", TASK, signers.ben.address);
  must("Ben's bond, read by cast", output.split(/\s/)[0], (20n * FLN).toString());
}

// The coordinator bonds what its cover lacks for this total; without it a post is refused.
async function cover({ signers, token, market }, total) {
  const lacking = total - await market.coveredOf(TASK);
  if (lacking <= 0n) return;
  await sent(token.connect(signers.coordinator).approve(market.target, lacking));
  await sent(market.connect(signers.coordinator).bond(TASK, lacking));
}

// Posts a round, waits for the end of its challenge window, and finalises it.
async function settle({ provider, signers, token, market }, round, values, last) {
  const tree = StandardMerkleTree.of(values, ["address", "uint256", "uint256"]);
  const data = values.reduce((sum, [, paid]) => sum + BigInt(paid), 0n);
  const posted = {
    round, report: digest(`report ${round}`), root: tree.root, dataTotal: data, scorePayTotal: data,
    infrastructureTotal: 0n, improvementTotalNano: data * 1_000_000_000n / (100n * FLN) + 1n,
  };
  const coordinator = market.connect(signers.coordinator);
  await expectError("a post without a bond", "TooSmall", coordinator.post.staticCall({ task: TASK, ...posted }, last));
  await cover({ signers, token, market }, data);
  await sent(coordinator.post({ task: TASK, ...posted }, last));
  const event = (await market.queryFilter(market.filters.SettlementPosted(TASK, round)))[0].args;
  must("the root in the event", event.root, tree.root);
  const pending = [{ ...posted, finalAt: event.finalAt }];
  must("finalised within the window", await market.finalize.staticCall(TASK, pending), 0n);
  await provider.send("evm_increaseTime", [WINDOW_MS / 1_000 + 1]);
  await provider.send("evm_mine", []);
  await sent(market.connect(signers.stranger).finalize(TASK, pending));
  return tree;
}

// The `LastSettlement` of the first round, from its event and by the hashes of SettlementChain.sol.
async function lastSettlement({ market }, values, root) {
  const hash = (types, list) => keccak256(AbiCoder.defaultAbiCoder().encode(types, list));
  const start = hash(["bytes32", "uint32", "bytes32", "uint128", "uint128"], [ZeroHash, 0, ZeroHash, 0, 0]);
  const { args } = (await market.queryFilter(market.filters.SettlementPosted(TASK, 1)))[0];
  const inner = hash(["bytes32", "bytes32", "uint128", "uint64", "uint64"],
    [start, args.report, args.scorePayTotal, args.improvementTotalNano, args.finalAt]);
  const dataTotal = values.reduce((sum, [, paid]) => sum + BigInt(paid), 0n);
  return { inner, round: 1, root, dataTotal, infrastructureTotal: 0n };
}

// A front-runner sends Ada's claim first, with cast: Ada is paid, the front-runner is not.
async function frontRun({ signers, token, market, cast }, tree) {
  const [account, paid, debited] = tree.at(0);
  const proof = tree.getProof(0);
  const before = await token.balanceOf(signers.stranger.address);
  await cast("send", "--unlocked", "--from", signers.stranger.address, market.target,
    "claim(bytes32,address,uint256,uint256,bytes32[])", TASK, account, paid, debited, `[${proof.join(",")}]`);
  must("the front-runner's wallet", await token.balanceOf(signers.stranger.address), before);
  const own = market.connect(signers.ada).claim.staticCall(TASK, account, paid, debited, proof);
  await expectError("Ada's claim after it", "NothingToClaim", own);
  const more = market.claim.staticCall(TASK, account, BigInt(paid) + 1n, debited, proof);
  await expectError("one unit more than the leaf", "InvalidProof", more);
}

async function claimAll({ signers, market }, tree) {
  const claims = [...tree.entries()].map(([i, [account, paid, debited]]) => (
    { task: TASK, account, paid, debited, proof: tree.getProof(i) }));
  await sent(market.connect(signers.stranger).claimMany(claims));
}

async function end({ provider, signers, token, market }) {
  await sent(market.connect(signers.coordinator).close(TASK, []));
  await provider.send("evm_increaseTime", [2 * WINDOW_MS / 1_000 + 1]);
  await provider.send("evm_mine", []);
  for (const name of ["coordinator", "ada", "ben"]) await sent(market.connect(signers[name]).withdrawBond(TASK));
  const expected = {
    deployer: 1_000_000n * FLN - 10_000n * FLN,
    buyer: 2_000n * FLN - 300n * FLN - 3n, // 70 to Ada, 150 and 1 to Ben, 80 and 2 to Cy; the rest is refunded
    coordinator: 2_000n * FLN, // its bond covered both settlements and returned
    arbiter: 0n,
    ada: 2_000n * FLN + 70n * FLN - 3n * FLN, // her debits
    ben: 2_000n * FLN + 150n * FLN + 1n - 7n * FLN - 5n, // his
    cy: 2_000n * FLN + 80n * FLN + 2n,
    stranger: 0n,
  };
  let sum = 0n;
  for (const [name, balance] of Object.entries(expected)) {
    must(`${name} in the end`, await token.balanceOf(signers[name].address), balance);
    sum += balance;
  }
  must("the treasury", await market.treasury(), 10n * FLN + 5n);
  must("the market's balance", await token.balanceOf(market.target), 10n * FLN + 5n);
  must("all of it", sum + 10n * FLN + 5n, await token.totalSupply());
  const state = await market.task(TASK);
  must("still owed", state.owed, 0n);
  must("refunded", state.refunded, 900n * FLN - 3n);
}

// -------------------------------------------------------------------------------------------- main

async function main() {
  const setup = await deployMarket(await chain());
  const { signers, market, cast } = setup;
  await open(setup);
  await bond(setup);
  const leaf = (name, paid, debited) => [signers[name].address, paid.toString(), debited.toString()];
  const none = { inner: ZeroHash, round: 0, root: ZeroHash, dataTotal: 0n, infrastructureTotal: 0n };
  const one = [leaf("ada", 30n * FLN, 3n * FLN), leaf("ben", 50n * FLN, 0n), leaf("cy", 1n, 0n)];
  const first = await settle(setup, 1, one, none);
  await frontRun(setup, first);
  const two = [leaf("ada", 70n * FLN, 3n * FLN), leaf("ben", 150n * FLN + 1n, 7n * FLN + 5n),
    leaf("cy", 80n * FLN + 2n, 0n)];
  const second = await settle(setup, 2, two, await lastSettlement(setup, one, first.root));
  await claimAll(setup, second);
  const output = await cast("call", market.target, "claimed(bytes32,address)(uint128,uint128)", TASK, signers.ben.address);
  const totals = output.split("\n").map((line) => line.split(" ")[0]);
  must("Ben's totals, read by cast", totals.join(), `${two[1][1]},${two[1][2]}`);
  await end(setup);
  console.log("a task of two rounds with ethers.js, cast and merkle-tree: every balance is exact");
}

main().then(() => process.exit(0), fail);
