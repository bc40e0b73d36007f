//! Tensor-core instructions in the machine code.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use super::Error;
use crate::process;
use crate::setup::CudaTool;

const LIMIT: Duration = Duration::from_secs(600);

/// How often each opcode occurs.
pub type Counts = BTreeMap<String, u32>;

/// Tensor-core opcodes of every function of a cubin.
pub(super) fn tensor_core(
    nvdisasm: &CudaTool,
    ptx: &Path,
    cubin: &Path,
) -> Result<BTreeMap<String, Counts>, Error> {
    let printed = process::run(Command::new(&nvdisasm.path).arg("-c").arg(cubin), LIMIT).map_err(
        |source| Error::Nvdisasm {
            path: ptx.to_owned(),
            source,
        },
    )?;
    Ok(count(&printed.stdout))
}

/// Counts in the output of `nvdisasm -c`.
pub fn count(listing: &str) -> BTreeMap<String, Counts> {
    let mut functions: BTreeMap<String, Counts> = BTreeMap::new();
    let mut function = None;
    for line in listing.lines() {
        let line = line.trim_start();
        if let Some(section) = line.strip_prefix(".section") {
            let name = section.trim_start().strip_prefix(".text.");
            function = name
                .and_then(|name| name.split([',', '\t', ' ']).next())
                .map(str::to_owned);
        } else if let (Some(function), Some(opcode)) = (&function, opcode(line))
            && is_tensor_core(opcode)
        {
            let counts = functions.entry(function.clone()).or_default();
            *counts.entry(opcode.to_owned()).or_insert(0) += 1;
        }
    }
    functions
}

/// `HGMMA` of `/*0a30*/  @!P0 HGMMA.64x256x16.F32.BF16 R24, gdesc[UR4] ;`, `UTCHMMA.2CTA` of
/// `/*2b60*/ UTCHMMA.2CTA gdesc[UR32], ...`.
fn opcode(line: &str) -> Option<&str> {
    let (address, rest) = line.strip_prefix("/*")?.split_once("*/")?;
    if !address.chars().all(|digit| digit.is_ascii_hexdigit()) {
        return None;
    }
    let word = rest
        .split_whitespace()
        .find(|word| !word.starts_with('@') && *word != "{")?;
    let pair = word.find(PAIR).map(|at| at + PAIR.len());
    let end = pair.or_else(|| word.find('.')).unwrap_or(word.len());
    Some(&word[..end])
}

/// What says that two blocks execute it together; a part of the opcode here.
const PAIR: &str = ".2CTA";

/// HMMA, IMMA, DMMA, QMMA, OMMA (registers); HGMMA, IGMMA, QGMMA, BGMMA (wgmma);
/// UTCHMMA, UTCQMMA, UTCIMMA, UTCOMMA (tcgen05), of pairs of blocks with `.2CTA`.
fn is_tensor_core(opcode: &str) -> bool {
    opcode.strip_suffix(PAIR).unwrap_or(opcode).ends_with("MMA")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counted_by_function() {
        let listing = "\t.section\t.text.one,\"ax\",@progbits\n.text.one:\n\
            \t\t/*0000*/                   LDC R1, c[0x0][0x28] ;\n\
            \t\t/*0010*/              @!P0 HGMMA.64x256x16.F32.BF16 R24, gdesc[UR4] ;\n\
            \t\t/*0020*/                   HGMMA.64x256x16.F32.BF16 R24, gdesc[UR4] ;\n\
            \t.section\t.text.two,\"ax\",@progbits\n\
            \t\t/*0000*/                   UTCQMMA.2CTA gdesc[UR4], gdesc[UR6] ;\n\
            \t\t/*0010*/                   FFMA R1, R2, R3, R4 ;\n";
        let counts = count(listing);
        assert_eq!(counts["one"], Counts::from([("HGMMA".into(), 2)]));
        assert_eq!(counts["two"], Counts::from([("UTCQMMA.2CTA".into(), 1)]));
    }
}
