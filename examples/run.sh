#!/bin/sh
# Runs an example: a market on this machine, with a buyer, a provider and participants that train a model
# of PyTorch on different rows.
#
#   examples/run.sh images|text|table [FOLDER]
#
# FOLDER (default: a new one) receives wallets, logs and the trained model. Needs the program `florin`,
# on the path or in target/release; FLORIN names another one.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
name=${1:?usage: examples/run.sh images|text|table [FOLDER]}
work=${2:-$(mktemp -d)}
florin=${FLORIN:-$(command -v florin || echo "$here/../target/release/florin")}
port=${PORT:-7791}
export FLORIN_MARKET="http://127.0.0.1:$port" FLORIN_PASSPHRASE=example

# Each participant has `share` rows behind those of the one before; the holdout has the rows behind all.
case $name in
images)
    people=6 share=150 rows=1797 data=digits
    model=images/digits.pt2 options='--buffers average'
    training='epochs = 5 batch = 16 learning_rate = 0.01 momentum = 0.9' rounds='count = 5 train = "60 s"'
    ;;
text)
    people=5 share=500 rows=3549 data="text:$here/text/psalms.txt#64"
    model=text/gpt.pt2 options='--loss token_cross_entropy --trainable *lora_b*'
    training='epochs = 1 batch = 16 optimizer = "adamw" learning_rate = 0.01 momentum = 0 schedule = "linear"' rounds='count = 4 train = "90 s"'
    ;;
table)
    people=4 share=60 rows=442 data="csv:$here/table/diabetes.csv#progression"
    model=table/net.pt2 options='--loss squared'
    training='epochs = 5 batch = 8 learning_rate = 0.01 momentum = 0.9' rounds='count = 4 train = "30 s"'
    ;;
*) echo "there is no example $name: choose images, text or table" >&2; exit 2 ;;
esac

mkdir -p "$work" && cd "$work"
names="coordinator buyer provider"
for at in $(seq "$people"); do names="$names p$at"; done
for wallet in $names; do "$florin" wallet new "$wallet.json" >/dev/null; done
address() { "$florin" wallet show "$1.json" | awk '/^address/ { print $2 }'; }
allocations="--allocate $(address buyer)=5000"
for wallet in $names; do
    case $wallet in p*) allocations="$allocations --allocate $(address "$wallet")=100" ;; esac
done
# shellcheck disable=SC2086
"$florin" coordinate --listen "127.0.0.1:$port" --data market --wallet coordinator.json \
    $allocations >coordinator.log 2>&1 &
started=$!
trap 'kill $started 2>/dev/null || true' EXIT
trap 'exit 1' INT TERM
until "$florin" task list >/dev/null 2>&1; do
    kill -0 "$started" 2>/dev/null || { cat coordinator.log >&2; exit 1; }
    sleep 0.2
done

# The task: made for the data, with the example's settings.
set -f
# shellcheck disable=SC2086
"$florin" task new task.toml --model "$here/$model" --data "$data" $options
set +f
held=$((people * share))
per_round=$(((rows - held) / $(echo "$rounds" | tr -dc '0-9 ' | awk '{ print $1 }')))
set_key() { sed -i.bak "s|^$1 = .*|$1 = $2|" task.toml; }
set_key rows "\"$held..$rows\""
set_key rows_per_round "$per_round"
set_key cohort_target "$people"
set_key challenge '"1 s"'
set_key unbond '"10 min"'
printf '%s %s\n' "$training" "$rounds" | sed 's/\([a-z_]* = \)/\n\1/g' | while read -r key _ value; do
    [ -n "$key" ] && set_key "$key" "$value"
done
"$florin" task publish task.toml --wallet buyer.json --json >published.json
task=$(sed -n 's/.*"task": *"\([0-9a-f]*\)".*/\1/p' published.json)
accept=$("$florin" task check task.toml --no-quote | sed -n 's/.*--accept-model \([0-9a-f]*\).*/\1/p' | tail -1)
"$florin" provide --task "$task" --wallet provider.json --max-stake 20 --trust-coordinator \
    >provider.log 2>&1 &
started="$started $!"
for at in $(seq "$people"); do
    "$florin" participate --task "$task" --wallet "p$at.json" --max-bond 30 --trust-coordinator \
        --accept-model "$accept" --data "$data" --rows "$(((at - 1) * share))..$((at * share))" \
        >"p$at.log" 2>&1 &
    started="$started $!"
done

"$florin" task follow "$task"
"$florin" task show "$task"
"$florin" audit "$task"
"$florin" task model "$task" --out trained.safetensors --evaluate "$data"
"$florin" task model "$task" --out trained.pt2 --from "$here/$model"
echo
echo "The trained model is $work/trained.pt2: torch.export.load reads it."
