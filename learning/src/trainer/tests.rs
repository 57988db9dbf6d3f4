//! The tests of trainers run programs in a real sandbox where bubblewrap works, and print that they
//! are skipped where it does not; refusals are tested everywhere.

use std::fs;
use std::net::{TcpListener, UdpSocket};
use std::ops::ControlFlow;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use tempfile::TempDir;

use super::{Isolation, PROGRAM, TrainerCode, TrainerEngine, TrainerError, TrainerHost};
use crate::engine::{CommandError, EvalError, Evaluator, TrainError, Trainer};
use crate::graph::{GraphDeclaration, GraphForm, GraphLoss, GraphModel};
use crate::{Dataset, ModelSpec, Reference, TrainedModel, Training, TrainingStep};

/// Writes `base.safetensors` as the update, with the last number changed to 2: what each program
/// here does unless it fails.
const GOOD: &str = "
import struct, sys
verb, job = sys.argv[1:]
def update(change=lambda bytes: bytes[:-4] + struct.pack('<f', 2.0)):
    base = open(job + '/base.safetensors', 'rb').read()
    open(job + '/update.safetensors', 'wb').write(change(base))
";

struct Scene {
    /// Holds the state folder, a wallet and the code.
    folder: TempDir,
    limit: Duration,
}

impl Scene {
    fn new(program: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("code")).unwrap();
        fs::write(folder.path().join("wallet.json"), "the secret key").unwrap();
        let scene = Self { folder, limit: Duration::from_secs(60) };
        scene.program(program);
        scene
    }

    fn program(&self, program: &str) {
        let file = self.folder.path().join("code").join(PROGRAM);
        fs::write(&file, format!("#!/usr/bin/python3\n{GOOD}\n{program}\n")).unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).unwrap();
    }

    fn code(&self) -> PathBuf {
        self.folder.path().join("code")
    }

    fn host(&self) -> TrainerHost {
        let at = |name: &str| self.folder.path().join(name);
        TrainerHost {
            accepted: TrainerCode::read(&self.code()).iter().map(TrainerCode::digest).collect(),
            binds: Vec::new(),
            secrets: vec![at("wallet.json"), at("state")],
            scratch: at("state"),
            limit: self.limit,
            isolation: Isolation::Sandbox,
        }
    }

    /// The engine; `None` where no sandbox can be created.
    fn engine(&self, host: TrainerHost) -> Option<TrainerEngine> {
        let engine = TrainerEngine::new(host, Box::new(Reference::new()));
        match engine.with_own(&self.code()) {
            Ok(engine) => Some(engine),
            Err(error @ TrainerError::SandboxMissing { .. }) => {
                eprintln!("SKIPPED: {error}");
                None
            }
            Err(error) => panic!("{error}"),
        }
    }

    fn train(&self) -> Option<Result<TrainedModel, TrainError>> {
        let trained = train(&mut self.engine(self.host())?, &mut |_| ControlFlow::Continue(()));
        let left = fs::read_dir(self.folder.path().join("state")).unwrap().count();
        assert_eq!(left, 0, "the files of a training are removed");
        Some(trained)
    }

    fn refusal(&self, host: TrainerHost) -> TrainerError {
        let engine = TrainerEngine::new(host, Box::new(Reference::new()));
        engine.with_own(&self.code()).err().expect("the trainer is refused")
    }
}

fn train(
    engine: &mut TrainerEngine,
    progress: &mut dyn FnMut(TrainingStep) -> ControlFlow<()>,
) -> Result<TrainedModel, TrainError> {
    let model = ModelSpec::Softmax { inputs: 2, classes: 2 };
    let data = Dataset::new(vec![0.5, 1.0, -1.0, 0.25], vec![0, 1], 2, 2).unwrap();
    let how = Training::sgd(1, 2, 0.1);
    engine.train(&model, &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0], &data, &how, 7, progress)
}

#[test]
fn a_program_trains_and_reads_its_files() {
    let scene = Scene::new(
        "import json
settings = json.load(open(job + '/job.json'))
assert verb == 'train' and settings['format'] == 1 and settings['seed'] == 7, settings
assert settings['training']['batch'] == 2 and settings['classes'] == 2, settings
rows = open(job + '/rows.safetensors', 'rb').read()
assert struct.pack('<4f', 0.5, 1.0, -1.0, 0.25) in rows and struct.pack('<2q', 0, 1) in rows
update()",
    );
    let Some(trained) = scene.train() else { return };
    let trained = trained.unwrap();
    assert_eq!(trained.params, [1.0, 2.0, 3.0, 2.0, 5.0, 6.0]);
    assert!(trained.mean_loss > 0.0);
}

/// Each line of the program is an attack that must fail, and is named if it does not.
#[test]
fn a_program_sees_no_file_key_variable_process_or_packet() {
    let (tcp, udp) =
        (TcpListener::bind("127.0.0.1:0").unwrap(), UdpSocket::bind("127.0.0.1:0").unwrap());
    tcp.set_nonblocking(true).unwrap();
    udp.set_nonblocking(true).unwrap();
    let scene = Scene::new("");
    let root = scene.folder.path().display().to_string();
    let (stream, datagram) = (tcp.local_addr().unwrap().port(), udp.local_addr().unwrap().port());
    let socket = scene.folder.path().join("agent.sock");
    let _unix = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    scene.program(&format!(
        "import os, socket, subprocess
leaks = []
def attack(name, act):
    try:
        act()
    except Exception:
        return
    leaks.append(name)
for path in ['{root}/wallet.json', '{root}/state', '/etc/passwd', '/etc/shadow', '/root', '/home',
             '/proc/1/root/etc/passwd', '/sys/kernel', '/run', '/var', '/proc/{pid}/environ']:
    attack(path, lambda: os.stat(path))
for path in ['/usr/x', '/code/x', job + '/x', '/x', '/etc/x', '/dev/x', '/proc/self/comm',
             '/proc/sys/kernel/core_pattern', '/proc/sys/kernel/hostname', '/proc/sysrq-trigger']:
    # Opened without a write: a success must not change the machine.
    attack('write ' + path, lambda: open(path, 'a').close())
attack('replace the rows', lambda: open(job + '/rows.safetensors', 'a'))
attack('remove the update', lambda: os.remove(job + '/update.safetensors'))
attack('tcp', lambda: socket.create_connection(('127.0.0.1', {stream}), 1))
attack('outside', lambda: socket.create_connection(('192.0.2.1', 80), 1))
def udp():
    out = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    out.sendto(b'x', ('127.0.0.1', {datagram}))
try: udp()
except OSError: pass
def unix(name):
    socket.socket(socket.AF_UNIX).connect(name)
attack('unix', lambda: unix('{root}/agent.sock'))
attack('abstract', lambda: unix(chr(0) + 'florin-trainer-{pid}'))
attack('raw socket', lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, 1))
attack('namespaces', lambda: subprocess.run(['unshare', '-U', 'true'], check=True))
attack('mounts', lambda: subprocess.run(['mount', '-t', 'tmpfs', 'x', '/mnt'], check=True))
known = {{'PATH', 'HOME', 'LANG', 'PWD', 'LC_CTYPE', 'OLDPWD', 'SHLVL', '_'}}
leaks += [name for name in os.environ if name not in known]
others = [pid for pid in os.listdir('/proc') if pid.isdigit()]
leaks += ['processes'] * (len(others) > 4)
leaks += ['network'] * (os.listdir('/sys/class/net') != ['lo'] if os.path.exists('/sys') else 0)
import resource
for limit in [resource.RLIMIT_NPROC, resource.RLIMIT_FSIZE, resource.RLIMIT_CORE]:
    leaks += ['no limit'] * (resource.getrlimit(limit)[1] == resource.RLIM_INFINITY)
if leaks: sys.exit('LEAKS: ' + ', '.join(leaks))
update()",
        pid = std::process::id()
    ));
    use std::os::linux::net::SocketAddrExt;
    let name = format!("florin-trainer-{}", std::process::id());
    let address = std::os::unix::net::SocketAddr::from_abstract_name(name).unwrap();
    let _abstract = std::os::unix::net::UnixListener::bind_addr(&address).unwrap();
    let Some(trained) = scene.train() else { return };
    trained.unwrap();
    assert!(tcp.accept().is_err(), "no connection came");
    assert!(udp.recv(&mut [0]).is_err(), "no packet came");
}

#[test]
fn wrong_output_fails_the_round_with_its_reason() {
    let table = [
        ("", "TRAINER_OUTPUT_INVALID", "wrote nothing"),
        ("sys.exit('no memory\\x1b[2J left')", "TRAINER_FAILED", "no memory | [2J left"),
        ("sys.exit(3)", "TRAINER_FAILED", "exit status: 3"),
        (
            "update(lambda b: b[:-4] + struct.pack('<f', float('nan')))",
            "TRAINER_OUTPUT_INVALID",
            "not finite",
        ),
        ("update(lambda b: b[:-4])", "TRAINER_OUTPUT_INVALID", "no safetensors file"),
        ("update(lambda b: b.replace(b'[2,2]', b'[1,4]'))", "TRAINER_OUTPUT_INVALID", "of [1, 4]"),
        (
            "update(lambda b: b.replace(b'.bias', b'.bier'))",
            "TRAINER_OUTPUT_INVALID",
            "has no tensor",
        ),
        ("update(lambda b: b * 90000)", "TRAINER_OUTPUT_INVALID", "has more than"),
        ("open('/tmp/full', 'wb').write(bytes(3 << 29))", "TRAINER_FAILED", "status"),
    ];
    for (program, code, part) in table {
        let scene = Scene::new(program);
        let Some(trained) = scene.train() else { return };
        match trained {
            Err(TrainError::Command(CommandError { code: found, why })) => {
                assert_eq!(found, code, "{program}: {why}");
                assert!(why.contains(part), "{program}: no {part:?} in {why:?}");
            }
            other => panic!("{program}: {other:?}"),
        }
    }
}

#[test]
fn a_program_that_never_ends_is_stopped_with_its_children() {
    let mut scene = Scene::new(
        "import os, time\nos.fork()\nos.setsid() if os.getpid() != os.getpgrp() else None\ntime.sleep(600)",
    );
    scene.limit = Duration::from_secs(1);
    let start = Instant::now();
    let Some(trained) = scene.train() else { return };
    let timed_out = |error: &CommandError| error.code == "TRAINER_TIMED_OUT";
    assert!(matches!(trained, Err(TrainError::Command(error)) if timed_out(&error)));
    assert!(start.elapsed() < Duration::from_secs(60));
    let mut engine = scene.engine(scene.host()).unwrap();
    let stopped = train(&mut engine, &mut |_| ControlFlow::Break(()));
    assert_eq!(stopped, Err(TrainError::Stopped { step: 0 }));
}

#[test]
fn code_that_is_not_accepted_or_changed_is_refused() {
    let scene = Scene::new("update()");
    let accepted = scene.host();
    let refused = scene.refusal(TrainerHost { accepted: Vec::new(), ..accepted.clone() });
    let digest = || TrainerCode::read(&scene.code()).unwrap().digest();
    let text: String = digest().iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(refused.code(), "TRAINER_NOT_ACCEPTED");
    assert!(refused.to_string().contains(&text), "{refused}");
    fs::write(scene.code().join("module.py"), "x = 1").unwrap();
    assert_eq!(scene.refusal(accepted).code(), "TRAINER_NOT_ACCEPTED");
    // A byte of a name is no byte of a file.
    let first = digest();
    fs::remove_file(scene.code().join("module.py")).unwrap();
    fs::write(scene.code().join("module.pyx"), " = 1").unwrap();
    assert_ne!(digest(), first);
}

#[test]
fn a_folder_without_a_program_or_with_links_is_refused() {
    let scene = Scene::new("update()");
    let code = scene.code();
    symlink("/etc/passwd", code.join("data")).unwrap();
    let refused = TrainerCode::read(&code).unwrap_err();
    assert_eq!(refused.code(), "INVALID_TRAINER");
    assert!(refused.to_string().contains("is a link"), "{refused}");
    fs::remove_file(code.join("data")).unwrap();
    fs::set_permissions(code.join(PROGRAM), fs::Permissions::from_mode(0o644)).unwrap();
    let refused = TrainerCode::read(&code).unwrap_err();
    assert!(refused.to_string().contains("an executable file"), "{refused}");
    assert!(TrainerCode::read(Path::new("/does/not/exist")).is_err());
}

#[test]
fn a_bind_or_a_folder_that_shows_the_wallet_is_refused() {
    let scene = Scene::new("update()");
    let binds = vec![scene.folder.path().to_owned()];
    let refused = scene.refusal(TrainerHost { binds, ..scene.host() });
    assert_eq!(refused.code(), "TRAINER_SEES_SECRETS", "{refused}");
    let secrets = vec![scene.code().join(PROGRAM)];
    let refused = scene.refusal(TrainerHost { secrets, ..scene.host() });
    assert_eq!(refused.code(), "TRAINER_SEES_SECRETS", "{refused}");
}

#[test]
fn without_a_sandbox_the_trainer_is_refused_unless_it_is_trusted() {
    let scene = Scene::new("update()");
    let empty = tempfile::tempdir().unwrap();
    assert_eq!(super::sandbox::find_bwrap(Some(empty.path().as_os_str())), None);
    let error = TrainerError::SandboxMissing { why: "bwrap is not installed".to_owned() };
    assert_eq!(error.code(), "SANDBOX_MISSING");
    assert!(error.to_string().contains("--unsandboxed"));
    let trusted = TrainerHost { isolation: Isolation::Unsandboxed, ..scene.host() };
    let mut engine = scene.engine(trusted.clone()).unwrap();
    let trained = train(&mut engine, &mut |_| ControlFlow::Continue(())).unwrap();
    assert_eq!(trained.params[3], 2.0);
    let wrong = TrainerHost { accepted: vec![[0; 32]], ..trusted };
    assert_eq!(scene.refusal(wrong).code(), "TRAINER_NOT_ACCEPTED");
}

/// The example's softmax regression as the model of a task.
struct SoftmaxTrainer {
    model: ModelSpec,
    plain: ModelSpec,
    data: Dataset,
    host: TrainerHost,
    _folder: TempDir,
}

impl SoftmaxTrainer {
    fn new(has_gradient: bool) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let example = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/trainer");
        let code = TrainerCode::read(&example).unwrap();
        let plain = ModelSpec::Softmax { inputs: 3, classes: 4 };
        let declaration = GraphDeclaration {
            form: GraphForm::Trainer { has_gradient },
            digest: code.digest(),
            inputs: 3,
            targets: 0,
            outputs: 4,
            loss: GraphLoss::CrossEntropy { label_smoothing: 0.0 },
            tensors: plain.tensors(),
        };
        let model = GraphModel::load(declaration, &code.to_bytes(), None).unwrap();
        let features = (0..60_u16).map(|at| f32::from(at * 37 % 19) / 10.0 - 0.9).collect();
        let data = Dataset::new(features, (0..20).map(|row| row % 4).collect(), 3, 4).unwrap();
        let host = TrainerHost {
            accepted: vec![code.digest()],
            binds: Vec::new(),
            secrets: Vec::new(),
            scratch: folder.path().to_owned(),
            limit: Duration::from_secs(60),
            isolation: Isolation::Unsandboxed,
        };
        let model = ModelSpec::Graph(Box::new(model));
        Self { model, plain, data, host, _folder: folder }
    }

    fn engine(&self) -> TrainerEngine {
        TrainerEngine::new(self.host.clone(), Box::new(Reference::new()))
    }
}

#[test]
fn a_trainer_has_the_losses_and_gradients_of_the_model_that_it_is() {
    let scene = SoftmaxTrainer::new(true);
    let SoftmaxTrainer { model, plain, data, .. } = &scene;
    let (mut ours, mut theirs) = (scene.engine(), Reference::new());
    let near = |a: &[f64], b: &[f64]| {
        assert_eq!(a.len(), b.len());
        assert!(a.iter().zip(b).all(|(a, b)| (a - b).abs() < 1e-12), "{a:?} {b:?}");
    };
    let params: Vec<Vec<f64>> = (1..4)
        .map(|model| (0..16).map(|at| f64::from(at * model % 7) / 5.0 - 0.6).collect())
        .collect();
    let slices: Vec<&[f64]> = params.iter().map(Vec::as_slice).collect();
    let found = ours.row_losses_at(model, &slices, data).unwrap();
    for (params, found) in slices.iter().zip(&found) {
        near(found, &theirs.row_losses(plain, params, data).unwrap());
        let right = theirs.correct_predictions(plain, params, data).unwrap();
        assert_eq!(ours.correct_predictions(model, params, data).unwrap(), right);
        let (loss, gradient) = ours.gradient(model, params, data).unwrap();
        let (plain_loss, plain_gradient) = theirs.gradient(plain, params, data).unwrap();
        near(&[loss], &[plain_loss]);
        near(&gradient, &plain_gradient);
    }
    let start = vec![0.0; 16];
    let how = Training::sgd(3, 4, 0.5);
    let trained =
        ours.train(model, &start, data, &how, 7, &mut |_| ControlFlow::Continue(())).unwrap();
    let before = crate::mean(&ours.row_losses(model, &[0.0; 16], data).unwrap());
    assert!(trained.mean_loss < before, "{} {before}", trained.mean_loss);
}

#[test]
fn a_model_that_is_a_trainer_runs_only_with_consent_and_through_its_engine() {
    let scene = SoftmaxTrainer::new(false);
    let params = [0.0; 16];
    let host = TrainerHost { accepted: Vec::new(), ..scene.host.clone() };
    let mut engine = TrainerEngine::new(host, Box::new(Reference::new()));
    match engine.row_losses(&scene.model, &params, &scene.data) {
        Err(EvalError::Command(error)) => assert_eq!(error.code, "TRAINER_NOT_ACCEPTED"),
        other => panic!("{other:?}"),
    }
    let refused = Reference::new().row_losses(&scene.model, &params, &scene.data);
    assert!(matches!(refused, Err(EvalError::Input(_))), "{refused:?}");
    let mut engine = scene.engine();
    let rows = engine.row_gradients(&scene.model, &[0.0; 16], &scene.data, &[0], &mut |_| ());
    assert!(rows.unwrap_err().to_string().contains("no gradients of rows"));
}
