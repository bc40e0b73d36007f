//! What the whole-product tests share: the probes, loaded on a device.

pub mod layer;
pub mod rank;

use std::cell::RefCell;
use std::sync::{Arc, OnceLock};

use mok::gemm::Tickets;
use mok::{Device, EmulatorConfig, Error, Kernel, Module};
use mok_kernel::launch::LaunchSpec;

static PTX: &str = include_str!(concat!(env!("OUT_DIR"), "/probes.ptx"));
static CUBIN: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/probes.cubin"));

/// The probes of tensor memory, for sm_100a.
pub static TCGEN05: &str = include_str!(concat!(env!("OUT_DIR"), "/tcgen05.ptx"));

/// Where the tests of this process run.
#[derive(Clone, Debug, Default)]
pub enum Place {
    /// GPU 0, one context for all tests.
    #[default]
    Gpu,
    /// An emulated GPU, a fresh one for each test.
    Emulator(EmulatorConfig),
}

static PLACE: OnceLock<Place> = OnceLock::new();

/// Says where tests run, before the first one does.
pub fn run_on(place: Place) {
    // A second call would come too late for tests that have begun.
    let _ = PLACE.set(place);
}

thread_local! {
    static OWN: RefCell<Option<EmulatorConfig>> = const { RefCell::new(None) };
}

/// Runs something on an emulated GPU of this kind, wherever the other tests run.
pub fn emulated<T>(config: EmulatorConfig, run: impl FnOnce() -> T) -> T {
    OWN.set(Some(config));
    let result = run();
    OWN.set(None);
    result
}

/// A device with the probes loaded.
pub struct Probes {
    /// The device.
    pub device: Device,
    /// For launches of the product kernels.
    pub tickets: Tickets,
    module: Module,
}

impl Probes {
    /// The probes on the device that tests run on.
    pub fn load() -> Result<Arc<Probes>, Error> {
        if let Some(config) = OWN.with_borrow(Clone::clone) {
            return Probes::on(Device::emulated(config)?).map(Arc::new);
        }
        static LOADED: OnceLock<Arc<Probes>> = OnceLock::new();
        if let Place::Emulator(config) = PLACE.get_or_init(Place::default) {
            return Probes::on(Device::emulated(config.clone())?).map(Arc::new);
        }
        if let Some(probes) = LOADED.get() {
            return Ok(probes.clone());
        }
        let probes = Arc::new(Probes::on(Device::cuda(0)?)?);
        Ok(LOADED.get_or_init(|| probes).clone())
    }

    fn on(device: Device) -> Result<Probes, Error> {
        let cubin = (!CUBIN.is_empty()).then_some(CUBIN);
        let module = Module::load(&device, cubin, Some(PTX))?;
        let tickets = Tickets::new(&device)?;
        Ok(Probes {
            device,
            tickets,
            module,
        })
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
