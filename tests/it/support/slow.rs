//! Participants whose trainings take longer.

use std::path::{Path, PathBuf};

/// Writes a trainer that runs a Python statement before it trains as the example does. Returns its folder.
fn delayed_trainer(folder: &Path, name: &str, statement: &str) -> String {
    let trainer = folder.join(name);
    std::fs::create_dir(&trainer).unwrap();
    let example = format!("{}/examples/trainer/trainer", env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(example).unwrap();
    let text = text.replacen("import array\n", "import array\nimport os\nimport time\n", 1);
    let text = text.replacen(
        "def train(weight, bias, rows, labels, how, seed):\n",
        &format!("def train(weight, bias, rows, labels, how, seed):\n    {statement}\n"),
        1,
    );
    assert!(text.contains(statement), "the example has another form");
    let path = trainer.join("trainer");
    std::fs::write(&path, text).unwrap();
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    }
    trainer.display().to_string()
}

/// Writes a trainer that sleeps for `seconds` before it runs the example. Returns its folder.
pub(crate) fn slow_trainer(folder: &Path, seconds: &str) -> String {
    delayed_trainer(folder, "slow", &format!("time.sleep({seconds})"))
}

/// The arguments of a participant with a trainer whose program it accepts.
pub(crate) fn with_trainer(mut call: Vec<String>, trainer: &str) -> Vec<String> {
    call.extend(["--trainer", trainer, "--unsandboxed"].map(str::to_owned));
    let refused = super::florin(&call).refused(2, "TRAINER_NOT_ACCEPTED");
    let digest = refused.err.split_whitespace().last().unwrap().trim_matches(['"', '.']).to_owned();
    call.extend(["--accept-trainer".to_owned(), digest]);
    call
}

/// The arguments of a participant with a slow trainer whose program it accepts.
pub(crate) fn with_slow_trainer(call: Vec<String>, folder: &Path, seconds: &str) -> Vec<String> {
    with_trainer(call, &slow_trainer(folder, seconds))
}

/// A trainer that waits for a test.
pub(crate) struct GatedTrainer {
    trainer: String,
    /// The file that it writes when it waits.
    waiting: PathBuf,
    /// The file that it waits for.
    gate: PathBuf,
}

impl GatedTrainer {
    /// Writes the trainer.
    pub(crate) fn write(folder: &Path) -> Self {
        let (waiting, gate) = (folder.join("waiting"), folder.join("gate"));
        let statement = format!(
            "open({waiting:?}, 'w').close()\n    while not os.path.exists({gate:?}):\n        \
             time.sleep(0.02)"
        );
        Self { trainer: delayed_trainer(folder, "gated", &statement), waiting, gate }
    }

    /// Its folder.
    pub(crate) fn folder(&self) -> &str {
        &self.trainer
    }

    /// Waits until a training waits.
    #[track_caller]
    pub(crate) fn wait(&self) {
        super::process::until("a training that waits", || self.waiting.exists().then_some(()));
    }

    /// Forgets the trainings that waited so far.
    pub(crate) fn forget(&self) {
        std::fs::remove_file(&self.waiting).unwrap();
    }

    /// Lets all trainings go on.
    pub(crate) fn open(&self) {
        std::fs::write(&self.gate, "").unwrap();
    }
}
