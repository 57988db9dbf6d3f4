//! A participant whose trainings take a stated time longer.

use std::path::Path;

/// Writes a trainer that sleeps for `seconds` before it runs the example. Returns its folder.
pub(crate) fn slow_trainer(folder: &Path, seconds: &str) -> String {
    let trainer = folder.join("slow");
    std::fs::create_dir(&trainer).unwrap();
    let example = format!("{}/examples/trainer/trainer", env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(example).unwrap();
    let text = text.replacen("import array\n", "import array\nimport time\n", 1);
    let text = text.replacen(
        "def train(weight, bias, rows, labels, how, seed):\n",
        &format!("def train(weight, bias, rows, labels, how, seed):\n    time.sleep({seconds})\n"),
        1,
    );
    assert!(text.contains(&format!("time.sleep({seconds})")), "the example has another form");
    let path = trainer.join("trainer");
    std::fs::write(&path, text).unwrap();
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    }
    trainer.display().to_string()
}

/// The arguments of a participant with a slow trainer whose program it accepts.
pub(crate) fn with_slow_trainer(
    mut call: Vec<String>,
    folder: &Path,
    seconds: &str,
) -> Vec<String> {
    let trainer = slow_trainer(folder, seconds);
    call.extend(["--trainer", &trainer, "--unsandboxed"].map(str::to_owned));
    let refused = super::florin(&call).refused(2, "TRAINER_NOT_ACCEPTED");
    let digest = refused.err.split_whitespace().last().unwrap().trim_matches(['"', '.']).to_owned();
    call.extend(["--accept-trainer".to_owned(), digest]);
    call
}
