//! What Modal is asked for when a sandbox is made.

use std::time::Duration;

use super::options::ModalOptions;
use super::wire::client::network_access::NetworkAccessType;
use super::wire::client::{GpuConfig, NetworkAccess, Resources, Sandbox as Definition, SchedulerPlacement};
use crate::backends::random_name;

/// A sandbox as `options` say.
pub(super) fn definition(options: &ModalOptions, image: String) -> Definition {
    let seconds = |duration: Duration| u32::try_from(duration.as_secs()).unwrap_or(u32::MAX);
    let cpus = options
        .cpus
        .map_or(0, |cpus| (cpus * 1000.0).round().clamp(1.0, f64::from(u32::MAX)) as u32);
    let memory = options
        .memory
        .map_or(0, |bytes| u32::try_from(bytes >> 20).unwrap_or(u32::MAX));
    let network = match options.is_blocked {
        true => NetworkAccessType::Blocked,
        false => NetworkAccessType::Open,
    };
    Definition {
        // It does nothing for longer than the sandbox lives. Not every `sleep` knows the word "infinity", and a variable
        // may say that programs are found elsewhere.
        entrypoint_args: vec![
            "/bin/sleep".to_owned(),
            (2 * seconds(options.lifetime).max(1)).to_string(),
        ],
        image_id: image,
        secret_ids: Vec::new(),
        resources: Some(Resources {
            memory_mb: memory,
            memory_mb_max: memory,
            milli_cpu: cpus,
            milli_cpu_max: cpus,
            gpu_config: options.gpu.as_ref().map(|gpu| GpuConfig {
                count: gpu.count,
                gpu_type: gpu.kind.clone(),
            }),
        }),
        timeout_secs: seconds(options.lifetime),
        workdir: None,
        scheduler_placement: (!options.regions.is_empty()).then(|| SchedulerPlacement {
            regions: options.regions.clone(),
        }),
        network_access: Some(NetworkAccess {
            network_access_type: network.into(),
        }),
        name: Some(format!("talaria-{}", random_name())),
        idle_timeout_secs: Some(seconds(options.idle_timeout)),
    }
}

#[cfg(test)]
mod tests {
    use super::super::credentials::ModalSources;
    use super::*;

    #[test]
    fn what_is_asked_for_is_what_was_set() {
        let mut options = ModalOptions::new("modal", "python:3.12", ModalSources::default());
        let plain = definition(&options, "im-1".into());
        let resources = plain.resources.unwrap_or_default();
        assert_eq!(
            (resources.memory_mb, resources.milli_cpu, &resources.gpu_config),
            (0, 0, &None)
        );
        assert_eq!((plain.timeout_secs, plain.idle_timeout_secs), (86_400, Some(1200)));
        assert_eq!(
            plain.network_access.unwrap_or_default().network_access_type(),
            NetworkAccessType::Open
        );
        assert!(plain.scheduler_placement.is_none());
        options.cpus = Some(1.5);
        options.memory = Some(5_120 << 20);
        options.is_blocked = true;
        options.regions = vec!["eu".into()];
        options.lifetime = Duration::from_secs(100);
        options.idle_timeout = Duration::from_secs(50);
        let set = definition(&options, "im-1".into());
        let resources = set.resources.unwrap_or_default();
        assert_eq!((resources.memory_mb, resources.memory_mb_max), (5_120, 5_120));
        assert_eq!((resources.milli_cpu, resources.milli_cpu_max), (1500, 1500));
        assert_eq!((set.timeout_secs, set.idle_timeout_secs), (100, Some(50)));
        assert_eq!(
            set.network_access.unwrap_or_default().network_access_type(),
            NetworkAccessType::Blocked
        );
        assert_eq!(set.scheduler_placement.unwrap_or_default().regions, ["eu"]);
        assert_eq!(set.entrypoint_args, ["/bin/sleep", "200"]);
    }
}
