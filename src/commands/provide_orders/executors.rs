//! The table `[executors]` of a policy: the devices on which segments are computed, and how they are reached.

use std::collections::BTreeMap;
use std::path::Path;

use florin_participant::leases::executors::{
    DeviceSupply, ExecutorBackend, ExecutorCommand, LAUNCHER_ARGUMENTS_MAX, MACHINE_DEVICES_MAX,
    ProcessBackend, QUEUE_MS, SBATCH_ARGUMENTS_MAX, SlurmBackend, refuse_argument,
};
use serde::Deserialize;

use crate::cli::{EngineArg, ExecutorKind};
use crate::kubernetes::KubernetesBackend;
use crate::kubernetes_plan::KubernetesPlan;
use crate::task_file::parse_ms;

/// Longest argument of a launcher or of sbatch, in bytes.
const ARGUMENT_BYTES_MAX: usize = 4_096;
/// Most limits of a pod.
const POD_LIMITS_MAX: usize = 16;

/// The table as it is written.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ExecutorsTable {
    backend: Option<ExecutorKind>,
    devices: Option<u32>,
    leases_per_device: Option<u32>,
    launcher: Option<Vec<String>>,
    arguments: Option<Vec<String>>,
    queue_max: Option<String>,
    interface: Option<String>,
    kubernetes: Option<KubernetesTable>,
}

/// The table `[executors.kubernetes]`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct KubernetesTable {
    image: String,
    claim: String,
    sub_path: Option<String>,
    namespace: Option<String>,
    program: Option<String>,
    #[serde(default)]
    limits: BTreeMap<String, String>,
}

/// The executors of a policy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ExecutorPlan {
    kind: ExecutorKind,
    pub(super) supply: DeviceSupply,
    launcher: Option<Vec<String>>,
    arguments: Vec<String>,
    interface: Option<String>,
    kubernetes: Option<KubernetesPlan>,
}

impl ExecutorsTable {
    /// The plan; `asked` is the backend of the command line.
    pub(super) fn plan(self, asked: Option<ExecutorKind>) -> Result<ExecutorPlan, String> {
        let kind = asked.or(self.backend).unwrap_or(ExecutorKind::Processes);
        let words = |key: &str, words: Option<&Vec<String>>, most: usize| {
            let words = words.map_or(&[][..], Vec::as_slice);
            let long =
                words.iter().any(|word| word.len() > ARGUMENT_BYTES_MAX || word.contains('\0'));
            match long || words.len() > most {
                true => Err(format!(
                    "executors.{key}: use at most {most} words of at most {ARGUMENT_BYTES_MAX} bytes"
                )),
                false => Ok(()),
            }
        };
        words("launcher", self.launcher.as_ref(), LAUNCHER_ARGUMENTS_MAX)?;
        words("arguments", self.arguments.as_ref(), SBATCH_ARGUMENTS_MAX)?;
        let refused = self.arguments.iter().flatten().find(|argument| refuse_argument(argument));
        if let Some(argument) = refused {
            return Err(format!(
                "executors.arguments: {argument} would move, multiply or hold the jobs"
            ));
        }
        if self.launcher.as_ref().is_some_and(|words| words.iter().all(String::is_empty)) {
            return Err("executors.launcher: name a program, such as mpirun".to_owned());
        }
        self.check_keys(kind)?;
        let ms = self.queue_max.as_deref().map(parse_ms).transpose();
        let queue_ms = ms.map_err(|why| format!("executors.queue_max: {why}"))?.unwrap_or(QUEUE_MS);
        let of_each = self.devices.unwrap_or(1);
        let batch = DeviceSupply::Batch { of_each, queue_ms };
        let (supply, kubernetes) = match kind {
            ExecutorKind::Processes => {
                let devices = self.devices.unwrap_or_else(cores);
                let leases_of_each = self.leases_per_device.unwrap_or(1);
                let launches = self.launcher.is_some();
                (DeviceSupply::Machine { devices, launches, leases_of_each }, None)
            }
            ExecutorKind::Slurm => (batch, None),
            ExecutorKind::Kubernetes => (batch, Some(self.pods(of_each)?)),
        };
        let (launcher, arguments) = (self.launcher, self.arguments.unwrap_or_default());
        let interface = self.interface;
        Ok(ExecutorPlan { kind, supply, launcher, arguments, interface, kubernetes })
    }

    /// Refuses keys of other backends.
    fn check_keys(&self, kind: ExecutorKind) -> Result<(), String> {
        use ExecutorKind::{Kubernetes, Processes, Slurm};
        for (key, is_set, of) in [
            ("arguments", self.arguments.is_some(), &[Slurm][..]),
            ("queue_max", self.queue_max.is_some(), &[Slurm, Kubernetes]),
            ("leases_per_device", self.leases_per_device.is_some(), &[Processes]),
            ("launcher", self.launcher.is_some(), &[Processes, Kubernetes]),
            ("kubernetes", self.kubernetes.is_some(), &[Kubernetes]),
        ] {
            if is_set && !of.contains(&kind) {
                let of: Vec<String> = of.iter().map(|kind| format!("{:?}", kind.name())).collect();
                return Err(format!("executors.{key} is for backend = {}", of.join(" or ")));
            }
        }
        Ok(())
    }

    /// The pods of Kubernetes.
    fn pods(&self, of_each: u32) -> Result<KubernetesPlan, String> {
        let Some(KubernetesTable { image, claim, sub_path, namespace, program, limits }) =
            &self.kubernetes
        else {
            return Err("add [executors.kubernetes] with image and claim".to_owned());
        };
        if of_each > 1 && self.launcher.is_none() {
            let why = "executors.launcher starts several ranks in a pod: set it, or devices = 1";
            return Err(why.to_owned());
        }
        if limits.len() > POD_LIMITS_MAX {
            return Err(format!("executors.kubernetes.limits: use at most {POD_LIMITS_MAX}"));
        }
        Ok(KubernetesPlan {
            image: image.clone(),
            claim: claim.clone(),
            sub_path: sub_path.clone(),
            namespace: namespace.clone(),
            program: program.clone().unwrap_or_else(|| "florin".to_owned()),
            limits: limits.clone(),
            launcher: self.launcher.clone(),
        })
    }
}

/// The cores of this machine but one, which the daemon has.
fn cores() -> u32 {
    let found = std::thread::available_parallelism().map_or(1, usize::from);
    u32::try_from(found).unwrap_or(u32::MAX).saturating_sub(1).clamp(1, MACHINE_DEVICES_MAX)
}

impl ExecutorPlan {
    /// The backend, whose executors run this program.
    pub(super) fn backend(
        &self,
        engine: EngineArg,
        state: &Path,
    ) -> anyhow::Result<Box<dyn ExecutorBackend>> {
        let program = std::env::current_exe()?.to_string_lossy().into_owned();
        let mut options = vec!["--engine".to_owned(), engine.engine.to_string()];
        if let Some(interface) = &self.interface {
            options.extend(["--rank-interface".to_owned(), interface.clone()]);
        }
        if let Some(pods) = self.kubernetes.clone() {
            return Ok(Box::new(KubernetesBackend::new(options, pods, state)?));
        }
        let command =
            ExecutorCommand { command: vec![program, "execute-segments".to_owned()], options };
        Ok(match self.kind {
            ExecutorKind::Processes | ExecutorKind::Kubernetes => {
                Box::new(ProcessBackend::new(command, self.launcher.clone()))
            }
            ExecutorKind::Slurm => Box::new(SlurmBackend::new(command, self.arguments.clone())),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(text: &str, asked: Option<ExecutorKind>) -> Result<ExecutorPlan, String> {
        toml::from_str::<ExecutorsTable>(text).unwrap().plan(asked)
    }

    #[test]
    fn the_table_and_the_command_line_choose_the_backend() {
        let shared = |devices, launches, leases_of_each| DeviceSupply::Machine {
            devices,
            launches,
            leases_of_each,
        };
        let machine = |devices, launches| shared(devices, launches, 1);
        let batch = |of_each, queue_ms| DeviceSupply::Batch { of_each, queue_ms };
        let supply = |text: &str, asked| plan(text, asked).unwrap().supply;
        assert_eq!(supply("devices = 3", None), machine(3, false));
        assert_eq!(supply("devices = 3\nlauncher = [\"mpirun\"]", None), machine(3, true));
        assert_eq!(supply("devices = 3\nleases_per_device = 2", None), shared(3, false, 2));
        assert_eq!(supply("", Some(ExecutorKind::Slurm)), batch(1, QUEUE_MS));
        let slurm = "backend = \"slurm\"\ndevices = 2\nqueue_max = \"1 min\"\n\
                     arguments = [\"--partition=gpu\"]";
        assert_eq!(supply(slurm, None), batch(2, 60_000));
        assert_eq!(plan(slurm, None).unwrap().arguments, ["--partition=gpu"]);
        assert!(matches!(supply("", None), DeviceSupply::Machine { devices: 1.., .. }));
    }

    #[test]
    fn a_key_of_the_other_backend_is_refused() {
        for (text, part) in [
            ("arguments = [\"-p\"]", "executors.arguments is for backend = \"slurm\""),
            (
                "queue_max = \"1 s\"",
                "executors.queue_max is for backend = \"slurm\" or \"kubernetes\"",
            ),
            (
                "backend = \"slurm\"\nlauncher = [\"mpirun\"]",
                "executors.launcher is for backend = \"processes\" or \"kubernetes\"",
            ),
            (
                "backend = \"slurm\"\nleases_per_device = 2",
                "executors.leases_per_device is for backend = \"processes\"",
            ),
            ("backend = \"kubernetes\"", "add [executors.kubernetes]"),
            ("[kubernetes]\nimage = \"a\"\nclaim = \"b\"", "executors.kubernetes is for"),
            (
                "backend = \"kubernetes\"\ndevices = 2\n[kubernetes]\nimage = \"a\"\nclaim = \"b\"",
                "executors.launcher starts several ranks",
            ),
            ("backend = \"slurm\"\nqueue_max = \"soon\"", "executors.queue_max"),
            ("launcher = []", "name a program"),
            ("backend = \"slurm\"\narguments = [\"--array=1-9\"]", "--array=1-9 would"),
        ] {
            let why = plan(text, None).unwrap_err();
            assert!(why.contains(part), "{part:?} is not in {why:?}");
        }
        let long = format!("launcher = [\"{}\"]", "a".repeat(ARGUMENT_BYTES_MAX + 1));
        assert!(plan(&long, None).is_err());
    }
}
