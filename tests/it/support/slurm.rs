//! A Slurm of one node: its controller and its daemon, started by hand without systemd and without rights of root.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use super::process::free_port;

/// The folder of the package that `cargo xtask setup` unpacks.
const UNPACKED: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/.tools/slurm/usr");
/// The folders of libraries and plug-ins, below it.
const LIBRARIES: &str = "lib/x86_64-linux-gnu";
const PLUGINS: &str = "lib/x86_64-linux-gnu/slurm-wlm";

/// Longest start of a Slurm.
const START_LIMIT: Duration = Duration::from_secs(60);

/// A running Slurm. Its processes end on drop.
pub(crate) struct Slurm {
    usr: PathBuf,
    folder: PathBuf,
    daemons: Vec<Child>,
}

/// The output of a command, without the line's end.
fn output(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output().unwrap();
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

impl Slurm {
    /// Starts one; `None` if there is none on this machine, or if it does not start: some sandboxes forbid it.
    pub(crate) fn start() -> Option<Self> {
        let usr = [UNPACKED, "/usr"].map(PathBuf::from);
        let usr = usr.into_iter().find(|usr| usr.join("sbin/slurmctld-wlm").is_file())?;
        // A socket's path is short.
        let folder = tempfile::Builder::new().prefix("slurm").tempdir_in("/tmp").ok()?.keep();
        let mut slurm = Self { usr, folder, daemons: Vec::new() };
        slurm.start_munge();
        slurm.write_settings();
        let file = slurm.folder.join("slurm.conf").display().to_string();
        let stepd = slurm.usr.join("sbin/slurmstepd-wlm").display().to_string();
        slurm.spawn("slurmctld-wlm", &["-D", "-f", &file]);
        slurm.spawn("slurmd-wlm", &["-D", "-d", &stepd, "-f", &file, "-N", &host()]);
        let began = Instant::now();
        while !slurm.run("sinfo", &["-h", "-o", "%T"]).contains("idle") {
            if began.elapsed() > START_LIMIT {
                eprintln!("this machine starts no Slurm: {}", slurm.logs());
                return None;
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        Some(slurm)
    }

    fn start_munge(&mut self) {
        let folder = self.folder.display().to_string();
        let key = self.folder.join("key");
        std::fs::write(&key, [7; 1_024]).unwrap();
        private(&key);
        let at = |option: &str, name: &str| format!("--{option}={folder}/{name}");
        let words = [
            "--foreground".to_owned(),
            "--force".to_owned(),
            at("key-file", "key"),
            at("socket", "socket"),
            at("pid-file", "munge.pid"),
            at("log-file", "munge.log"),
            at("seed-file", "seed"),
        ];
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        self.spawn("munged", &words);
        let began = Instant::now();
        while !self.folder.join("socket").exists() && began.elapsed() < START_LIMIT {
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    fn write_settings(&self) {
        let (folder, plugins) = (self.folder.display(), self.usr.join(PLUGINS));
        let (plugins, host, user) = (plugins.display(), host(), output("id", &["-un"]));
        let (first, second) = (free_port(), free_port());
        let text = format!(
            "ClusterName=florin\nSlurmctldHost={host}(127.0.0.1)\nSlurmUser={user}\nSlurmdUser={user}\n\
             AuthType=auth/munge\nAuthInfo=socket={folder}/socket\nPluginDir={plugins}\n\
             StateSaveLocation={folder}/state\nSlurmdSpoolDir={folder}/spool\n\
             SlurmctldPidFile={folder}/ctld.pid\nSlurmdPidFile={folder}/d.pid\n\
             SlurmctldPort={first}\nSlurmdPort={second}\nProctrackType=proctrack/linuxproc\n\
             TaskPlugin=task/none\nSelectType=select/cons_tres\nSelectTypeParameters=CR_Core\n\
             ReturnToService=2\nMailProg=/bin/true\n\
             NodeName={host} NodeAddr=127.0.0.1 CPUs=2 RealMemory=1000 State=UNKNOWN\n\
             PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP\n"
        );
        std::fs::create_dir_all(self.folder.join("state")).unwrap();
        std::fs::create_dir_all(self.folder.join("spool")).unwrap();
        std::fs::write(self.folder.join("slurm.conf"), text).unwrap();
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command.envs(self.environment()).stdin(Stdio::null());
        command
    }

    fn spawn(&mut self, program: &str, arguments: &[&str]) {
        let log = std::fs::File::create(self.folder.join(format!("{program}.out"))).unwrap();
        let program = self.usr.join("sbin").join(program).display().to_string();
        let mut command = self.command(&program);
        command.args(arguments).stdout(log.try_clone().unwrap()).stderr(log);
        self.daemons.push(command.spawn().unwrap());
    }

    fn run(&self, program: &str, arguments: &[&str]) -> String {
        let program = self.usr.join("bin").join(program).display().to_string();
        let output = self.command(&program).args(arguments).output().unwrap();
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// The output of its daemons.
    fn logs(&self) -> String {
        let read = |name: &str| std::fs::read_to_string(self.folder.join(name)).unwrap_or_default();
        ["munged.out", "slurmctld-wlm.out", "slurmd-wlm.out"].map(read).concat()
    }

    /// The variables by which a program finds this Slurm.
    pub(crate) fn environment(&self) -> Vec<(String, String)> {
        let below = |name: &str| self.usr.join(name).display().to_string();
        let joined = |name: &str, more: String| {
            let before = std::env::var(name).unwrap_or_default();
            (name.to_owned(), format!("{more}:{before}"))
        };
        vec![
            ("SLURM_CONF".to_owned(), self.folder.join("slurm.conf").display().to_string()),
            joined("PATH", below("bin")),
            joined("LD_LIBRARY_PATH", format!("{}:{}", below(LIBRARIES), below(PLUGINS))),
        ]
    }

    /// The jobs in the queue.
    pub(crate) fn queue(&self) -> String {
        self.run("squeue", &["--noheader", "--format=%i %j %T"])
    }
}

fn host() -> String {
    output("hostname", &["-s"])
}

fn private(path: &Path) {
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o400)).unwrap();
}

impl Drop for Slurm {
    fn drop(&mut self) {
        self.run("scancel", &["--me"]);
        for daemon in self.daemons.iter_mut().rev() {
            let _ = daemon.kill();
            let _ = daemon.wait();
        }
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}
