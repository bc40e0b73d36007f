//! The kernels that ship with this crate.

use mok_kernel::arch::Arch;
use mok_kernel::gate_up;
use mok_kernel::gemm::Form;
use mok_kernel::launch::LaunchSpec;
use mok_kernel::mxfp8;
use mok_kernel::unfused;

use crate::device::Device;
use crate::error::{Error, Result};
use crate::module::{Image, Kernel, Module};

/// One architecture's code, as it was built into this crate.
#[derive(Clone, Copy, Debug)]
pub struct Embedded {
    /// The architecture.
    pub arch: Arch,
    /// The PTX, with its launch directives.
    pub ptx: &'static str,
    /// The cubin, where ptxas was there when the crate was built.
    pub cubin: Option<&'static [u8]>,
}

include!(concat!(env!("OUT_DIR"), "/embedded.rs"));

/// The code for an architecture.
///
/// ```
/// use mok_kernel::arch::Arch;
///
/// for arch in Arch::ALL {
///     if let Some(code) = mok::kernels::embedded(arch) {
///         assert!(code.ptx.contains(arch.name()));
///     }
/// }
/// ```
pub fn embedded(arch: Arch) -> Option<&'static Embedded> {
    EMBEDDED.iter().find(|code| code.arch == arch)
}

/// The shipped kernels, loaded on a device; made by [`Device::kernels`].
#[derive(Debug)]
pub struct Kernels {
    module: Module,
    gemm: [Kernel; 3],
    gate_up: Kernel,
    mxfp8: Option<Kernel>,
    quantize: Kernel,
    dequantize: Kernel,
    layer: LayerKernels,
}

/// The kernels of the layer in separate launches.
#[derive(Clone, Debug)]
pub(crate) struct LayerKernels {
    pub publish: Kernel,
    pub signal: Kernel,
    pub abort: Kernel,
    pub count: Kernel,
    pub place: Kernel,
    pub scatter: Kernel,
    pub dispatch: Kernel,
    pub combine: Kernel,
    pub permute: Kernel,
    pub swiglu: Kernel,
    pub weigh: Kernel,
    /// A pass in one launch.
    pub forward: Kernel,
}

impl LayerKernels {
    /// The entries of a module, as `find` finds them.
    pub(crate) fn of(
        arch: Arch,
        find: impl Fn(&'static LaunchSpec) -> Result<Kernel>,
    ) -> Result<LayerKernels> {
        Ok(LayerKernels {
            forward: find(mok_kernel::forward::spec(arch))?,
            publish: find(&unfused::PUBLISH)?,
            signal: find(&unfused::SIGNAL)?,
            abort: find(&unfused::ABORT)?,
            count: find(&unfused::COUNT)?,
            place: find(&unfused::PLACE)?,
            scatter: find(&unfused::SCATTER)?,
            dispatch: find(&unfused::DISPATCH)?,
            combine: find(&unfused::COMBINE)?,
            permute: find(&unfused::PERMUTE)?,
            swiglu: find(&unfused::SWIGLU)?,
            weigh: find(&unfused::WEIGH)?,
        })
    }
}

impl Kernels {
    /// Loads all entries now: lazy loading can block behind a kernel that waits for a peer.
    pub(crate) fn load(device: &Device) -> Result<Kernels> {
        let arch = device.arch()?;
        let code = embedded(arch).ok_or(Error::NotEmbedded { arch: arch.name() })?;
        let module = Module::load(device, code.cubin, Some(code.ptx))?;
        let [forward, dgrad, wgrad] = Form::ALL.map(|form| module.shipped_kernel(form.spec(arch)));
        Ok(Kernels {
            gemm: [forward?, dgrad?, wgrad?],
            gate_up: module.shipped_kernel(gate_up::spec(arch))?,
            mxfp8: mxfp8::forward(arch)
                .map(|spec| module.shipped_kernel(spec))
                .transpose()?,
            quantize: module.shipped_kernel(&mxfp8::QUANTIZE)?,
            dequantize: module.shipped_kernel(&mxfp8::DEQUANTIZE)?,
            layer: LayerKernels::of(arch, |spec| module.shipped_kernel(spec))?,
            module,
        })
    }

    /// Whether cubins or PTX were loaded.
    pub fn image(&self) -> Image {
        self.module.image()
    }

    /// The module, for its other entries.
    pub fn module(&self) -> &Module {
        &self.module
    }

    pub(crate) fn layer(&self) -> &LayerKernels {
        &self.layer
    }

    /// Gate-and-up.
    pub fn gate_up(&self) -> &Kernel {
        &self.gate_up
    }

    /// The forward product in MXFP8, where the architecture has one.
    pub fn mxfp8(&self) -> Option<&Kernel> {
        self.mxfp8.as_ref()
    }

    /// bf16 to MXFP8.
    pub fn quantize(&self) -> &Kernel {
        &self.quantize
    }

    /// MXFP8 to bf16.
    pub fn dequantize(&self) -> &Kernel {
        &self.dequantize
    }

    /// A form of the grouped GEMM.
    pub fn gemm(&self, form: Form) -> &Kernel {
        match form {
            Form::Forward => &self.gemm[0],
            Form::Dgrad => &self.gemm[1],
            Form::Wgrad => &self.gemm[2],
        }
    }
}
