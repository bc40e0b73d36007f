//! What the whole-product tests share: the probes, loaded on a device.

use std::sync::OnceLock;

use mok::{Device, Error, Kernel, Module};
use mok_kernel::launch::LaunchSpec;

static PTX: &str = include_str!(concat!(env!("OUT_DIR"), "/probes.ptx"));
static CUBIN: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/probes.cubin"));

/// A device with the probes loaded.
pub struct Probes {
    /// The device.
    pub device: Device,
    module: Module,
}

impl Probes {
    /// The probes on GPU 0, loaded once.
    pub fn load() -> Result<&'static Probes, Error> {
        static LOADED: OnceLock<Probes> = OnceLock::new();
        if let Some(probes) = LOADED.get() {
            return Ok(probes);
        }
        let probes = Probes::load_new()?;
        Ok(LOADED.get_or_init(|| probes))
    }

    fn load_new() -> Result<Probes, Error> {
        let device = Device::cuda(0)?;
        let cubin = (!CUBIN.is_empty()).then_some(CUBIN);
        let module = Module::load(&device, cubin, Some(PTX))?;
        Ok(Probes { device, module })
    }

    /// A probe.
    pub fn kernel(&self, spec: &'static LaunchSpec) -> Result<Kernel, Error> {
        self.module.kernel(spec)
    }
}

/// Why this machine can't run the probes, which are built for Hopper; `None` if it can.
pub fn no_gpu() -> Option<String> {
    match Device::cuda(0).and_then(|device| device.arch()) {
        Ok(mok::Arch::Sm90a) => None,
        Ok(arch) => Some(format!(
            "the probes are for sm_90a, this GPU is {}",
            arch.name()
        )),
        Err(error) => Some(error.to_string()),
    }
}
