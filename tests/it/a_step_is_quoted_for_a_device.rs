//! `florin quote` measures this device once, writes its card, and predicts steps by cards.

use florin_learning::step_cost::{DeviceCard, MeasuredPower, WORK_KINDS};

use florin_sim::Scenario;

use crate::support::florin;

fn model() -> String {
    format!("{}/examples/images/digits.pt2", env!("CARGO_MANIFEST_DIR"))
}

#[test]
fn a_card_of_this_device_predicts_steps_elsewhere() {
    let folder = tempfile::tempdir().unwrap();
    let card = folder.path().join("card.json").display().to_string();
    let file = model();
    let measured = florin(&["quote", &file, "--batch", "32", "--save-card", &card, "--json"]);
    let measured = measured.expect(0).json();
    let quote = |more: &[&str]| {
        let call = [&["quote", &file, "--devices", &card], more].concat();
        florin(&call)
    };
    let again = quote(&["--batch", "32", "--json"]).expect(0).json();
    assert_eq!(measured["devices"][0]["step_seconds"], again["devices"][0]["step_seconds"]);
    let bytes = |quote: &serde_json::Value| quote["step_tensor_bytes"].as_u64().unwrap();
    assert_eq!(bytes(&measured), bytes(&again));
    let seconds = again["devices"][0]["step_seconds"]["seconds"].as_f64().unwrap();
    assert!(seconds > 0.0 && seconds < 10.0, "{again}");
    let more = ["--batch", "64", "--rows", "640", "--epochs", "3", "--price", "2", "--json"];
    let larger = quote(&more).expect(0).json();
    assert_eq!(larger["steps"], 30);
    assert!(bytes(&larger) > bytes(&again) * 3 / 2, "{larger}");
    let longer = larger["devices"][0]["step_seconds"]["seconds"].as_f64().unwrap();
    assert!(longer > seconds, "{larger}");
    assert!(larger["devices"][0]["round_cost"].as_str().unwrap().parse::<f64>().unwrap() > 0.0);
    let text = quote(&["--batch", "32", "--rows", "640"]).expect(0).out;
    // The machine has a counter, or the line states why it has none.
    assert!(text.contains("J a step") || text.contains("unknown"), "{text}");
    assert!(
        text.contains("ms a step")
            && text.contains("tensors of a step")
            && text.contains("steps of a round"),
        "{text}"
    );
    let part = quote(&["--batch", "32", "--trainable", "*fc*", "--json"]);
    if part.code == 0 {
        assert!(part.json()["update_bytes"].as_u64() < again["update_bytes"].as_u64());
    }
    let old = std::fs::read_to_string(&card).unwrap().replace("\"version\": 2", "\"version\": 1");
    std::fs::write(&card, old).unwrap();
    let refused = quote(&["--batch", "32"]).refused(2, "INVALID_CARD");
    assert!(refused.err.contains("its version is 1, not 2"), "{}", refused.err);
    std::fs::write(&card, "{\"version\": 1}").unwrap();
    quote(&["--batch", "32"]).refused(2, "INVALID_CARD");
    quote(&["--batch", "0"]).expect(2);
}

/// Writes a card of a device that is not measured.
fn stated_card(folder: &std::path::Path) -> String {
    let seconds = |kind: &&str| {
        let of_one = if kind.ends_with("bytes") || kind.ends_with("flops") { 1e-10 } else { 1e-6 };
        ((*kind).to_owned(), of_one)
    };
    let card = DeviceCard {
        version: 2,
        engine: "stated".to_owned(),
        threads: 1,
        seconds: WORK_KINDS.iter().map(seconds).collect(),
        error: 0.1,
        points: 1,
        power: Some(MeasuredPower {
            source: "RAPL of the processor".to_owned(),
            idle_watts: 10.0,
            training_watts: 30.0,
        }),
    };
    let file = folder.join("card.json");
    std::fs::write(&file, serde_json::to_vec(&card).unwrap()).unwrap();
    file.display().to_string()
}

#[test]
fn a_card_with_watts_gives_joules() {
    let folder = tempfile::tempdir().unwrap();
    let (file, card) = (model(), stated_card(folder.path()));
    let quote = |more: &[&str]| {
        florin(&[&["quote", &file, "--devices", &card, "--batch", "32"], more].concat()).expect(0)
    };
    let device = &quote(&["--rows", "640", "--json"]).json()["devices"][0];
    let number = |place: &str| device.pointer(place).unwrap().as_f64().unwrap();
    let (step, round) = (number("/step_seconds/seconds"), number("/round_seconds"));
    for (place, joules) in [
        ("/energy/step_joules/all", 30.0 * step),
        ("/energy/step_joules/beyond_idle", 20.0 * step),
        ("/energy/round_joules/all", 30.0 * round),
        ("/energy/round_joules/beyond_idle", 20.0 * round),
    ] {
        assert!((number(place) / joules - 1.0).abs() < 1e-9, "{place}: {device}");
    }
    let text = quote(&["--rows", "640"]).out;
    assert!(text.contains("J a round") && text.contains("by RAPL of the processor"), "{text}");
    let without = std::fs::read_to_string(&card).unwrap();
    let mut without: serde_json::Value = serde_json::from_str(&without).unwrap();
    without.as_object_mut().unwrap().remove("power");
    std::fs::write(&card, without.to_string()).unwrap();
    assert!(quote(&["--json"]).json()["devices"][0]["energy"].is_null());
    assert!(quote(&[]).out.contains("has no watts"));
}

#[test]
fn optimizers_take_time_and_memory() {
    let folder = tempfile::tempdir().unwrap();
    let (file, card) = (model(), stated_card(folder.path()));
    let quote = |more: &[&str]| {
        florin(&[&["quote", &file, "--devices", &card, "--batch", "32"], more].concat())
    };
    let of = |more: &[&str]| {
        let quote = quote(&[more, &["--json"]].concat()).expect(0).json();
        let update = quote["update_bytes"].as_u64().unwrap();
        assert_eq!(quote["parameter_bytes"].as_u64().unwrap(), 3 * update);
        let seconds = quote["devices"][0]["step_seconds"]["seconds"].as_f64().unwrap();
        (quote["optimizer_bytes"].as_u64().unwrap() / update, seconds)
    };
    let [plain, momentum, adam] =
        [&[][..], &["--momentum", "0.9"], &["--optimizer", "adam"]].map(of);
    assert_eq!([plain.0, momentum.0, adam.0], [0, 1, 2]);
    // Two and six more calls of a microsecond each, and 5 and 15 passes over the parameters.
    let passes = |seconds: f64, calls: f64| 1e6 * (seconds - plain.1) - calls;
    let [five, fifteen] = [passes(momentum.1, 2.0), passes(adam.1, 6.0)];
    assert!(five > 0.0 && (fifteen / five - 3.0).abs() < 1e-3, "{plain:?} {momentum:?} {adam:?}");
    quote(&["--optimizer", "adam", "--momentum", "0.9"]).refused(2, "INVALID_QUOTE");
    quote(&["--optimizer", "lion"]).expect(2);
    let together = ["--together", "8", "--optimizer", "adamw", "--json"];
    let together = &quote(&together).expect(0).json()["together"];
    assert!(together["optimizer_seconds"].as_f64().unwrap() > 6e-6, "{together}");
}

#[test]
fn devices_are_quoted_together() {
    let folder = tempfile::tempdir().unwrap();
    let (file, card) = (model(), stated_card(folder.path()));
    let two = [&card[..], ",", &card].concat();
    let together = |more: &[&str]| {
        let call = ["quote", &file, "--devices", &two, "--batch", "32", "--together", "8"];
        florin(&[&call[..], more].concat())
    };
    let fast = together(&["--link-rate", "10000", "--json"]).expect(0).json();
    assert_eq!(fast["together"]["workers"][1]["start"], 4, "{fast}");
    let of = |quote: &serde_json::Value| quote["together"]["step_seconds"].as_f64().unwrap();
    let slow = together(&["--link-rate", "0.1", "--json"]).expect(0).json();
    assert!(of(&fast) < of(&slow), "{fast} {slow}");
    assert_eq!(slow["together"]["workers"][0]["end"], 8, "one device is faster: {slow}");
    let text = together(&[]).expect(0).out;
    assert!(text.contains("step of all devices") && text.contains("chunks="), "{text}");
    together(&["--link-rate", "0"]).expect(2);
    florin(&["quote", &file, "--devices", &card, "--batch", "32", "--link-rate", "5"]).expect(2);
}

#[test]
fn a_step_is_written_for_a_scenario_with_devices() {
    let folder = tempfile::tempdir().unwrap();
    let (file, card) = (model(), stated_card(folder.path()));
    let step = folder.path().join("step.toml").display().to_string();
    let call = ["quote", &file, "--devices", &card, "--batch", "64", "--together", "4", "--json"];
    let quoted = florin(&[&call[..], &["--save-step", &step]].concat()).expect(0).json();
    let text = format!(
        "name = 'a'\nquestion = 'In time?'\nrounds = 1\n{}[population.a]\ncount = 2\n\
         [population.a.devices]\nmemory_gib = [1]\n[population.b]\ncount = 2\n\
         [population.b.devices]\nmemory_gib = [1]\ncard = 'card.json'",
        std::fs::read_to_string(&step).unwrap()
    );
    let scenario = Scenario::read_in(folder.path(), &text, &[]).unwrap();
    let step = scenario.task.step.unwrap();
    assert_eq!(step.parameters * 4, quoted["update_bytes"].as_u64().unwrap());
    assert_eq!((step.workers, step.work["steps"]), (4, 1.0));
    // A worker has a quarter of the batch, and less than the memory of the whole one.
    assert!(step.bytes < quoted["step_tensor_bytes"].as_u64().unwrap(), "{quoted}");
    assert!(step.plans.iter().all(|plan| plan.bytes < step.bytes && plan.slow_down >= 1.0));
    let of_card = quoted["devices"][0]["step_seconds"]["seconds"].as_f64().unwrap();
    assert!(step.seconds.unwrap() < of_card, "{quoted}");
}

#[test]
fn measured_steps_predict_other_numbers_of_replicas() {
    let folder = tempfile::tempdir().unwrap();
    let (file, card) = (model(), stated_card(folder.path()));
    // Steps of 10 ms and 1 ms a row, with 5 ms for an average.
    let measured = folder.path().join("steps.csv");
    let lines = [
        "rows,replicas,nodes,step_seconds",
        "10,1,1,0.02",
        "30,1,1,0.04",
        "10,2,1,0.025",
        "30,2,1,0.045",
        "30,4,1,0.045",
        "10,4,1,0.025",
    ];
    std::fs::write(&measured, lines.join("\n")).unwrap();
    let measured = measured.display().to_string();
    let scaled = |more: &[&str]| {
        let call = ["quote", &file, "--devices", &card, "--batch", "32"];
        let steps = ["--measured", &measured, "--replicas", "1,2,8"];
        florin(&[&call[..], &steps, more].concat())
    };
    let scaling = &scaled(&["--json"]).expect(0).json()["scaling"];
    let seconds = |at: usize| scaling["steps"][at]["step_seconds"].as_f64().unwrap();
    assert!((seconds(0) - 0.042).abs() < 1e-3 && (seconds(1) - 0.031).abs() < 1e-3, "{scaling}");
    assert_eq!(scaling["steps"][2]["is_extrapolated"], true, "{scaling}");
    assert_eq!(scaling["fastest_replicas"], 8, "{scaling}");
    assert!(scaled(&[]).expect(0).out.contains("beyond the measured steps"));
    std::fs::write(&measured, "rows,replicas,nodes,step_seconds\n10,1,1,0\n").unwrap();
    scaled(&[]).refused(2, "INVALID_MEASUREMENTS");
    std::fs::write(&measured, "rows,replicas\n10,1\n").unwrap();
    scaled(&[]).refused(2, "INVALID_MEASUREMENTS");
}
