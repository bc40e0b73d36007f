use super::*;
use crate::machine::{Config, Machine};
use crate::program::Program;

/// What fails of a body.
fn load(body: &str) -> Result<(), String> {
    let text = format!(
        ".version 8.4\n.target sm_100a\n.address_size 64\n.func callee() {{ ret; }}\n\
         .visible .entry f()\n{{\n\
         .reg .b64 %r<16>;\n.reg .b128 %q<4>;\n.reg .pred %p<2>;\ntable: .branchtargets end;\n{body}end:\nret;\n}}\n"
    );
    let mut machine = Machine::new(Config::default());
    let loaded = Program::load(&mut machine, 0, &text);
    loaded.map(drop).map_err(|error| error.to_string())
}

fn operands(name: &str, template: &str) -> String {
    let lanes = name
        .split('.')
        .find_map(|part| match part {
            "v2" => Some(2),
            "v4" => Some(4),
            "v8" => Some(8),
            _ => None,
        })
        .unwrap_or(1);
    let wide = if template.contains("$q") { "q" } else { "r" };
    let registers: Vec<String> = (0..lanes).map(|at| format!("%{wide}{at}")).collect();
    let vector = match lanes {
        1 => registers[0].clone(),
        _ => format!("{{{}}}", registers.join(", ")),
    };
    let policy = if name.contains("L2::cache_hint") {
        ", %r15"
    } else {
        ""
    };
    template.replace("$q", "$").replace('$', &vector) + policy
}

#[test]
fn every_listed_name_decodes() {
    let mut count = 0;
    for row in ROWS {
        let names = row.parsed().names();
        count += names.len();
        // All `tcgen05` of a kernel name one group.
        let pairs = |name: &&String| name.contains("cta_group::2");
        let (pairs, others): (Vec<&String>, Vec<&String>) = names.iter().partition(pairs);
        for names in [pairs, others] {
            let body: String = names
                .iter()
                .map(|name| format!("{name} {};\n", operands(name, row.1)))
                .collect();
            if let Err(error) = load(&body) {
                panic!("{}: {error}", row.0);
            }
        }
    }
    assert!(count > 20_000, "{count} names");
}

#[test]
fn every_decoded_family_is_listed() {
    let tensor = crate::tensor::isa();
    for (opcode, _) in OPCODES {
        let own = ROWS.iter().any(|row| row.parsed().opcode == *opcode);
        let other = tensor
            .iter()
            .any(|(name, _)| name.split('.').next() == Some(opcode));
        assert!(own || other, "no row for {opcode}");
    }
    // The other way round: the decoder takes an opcode from the list, or a scalar one.
    for row in isa() {
        assert!(Family::of(row.opcode).is_some(), "{}", row.opcode);
    }
}

#[test]
fn what_is_not_listed_does_not_load() {
    for body in [
        "sured.b.add.1d.u32 [%r0, {%r1}], %r2;\n",
        // Registers of 64 bits.
        "ld.global.b128 %r0, [%r8];\n",
        "st.global.v2.b128 [%r8], {%r0, %r1};\n",
        "mov.b128 %r0, {%r1, %r2};\n",
        "atom.global.exch.b128 %r0, [%r8], %r1;\n",
        "tcgen05.shift.cta_group::1.down [%r0];\n",
        "tcgen05.mma.ws.cta_group::1.kind::f16 [%r0], %r8, %r9, %r1, %p0;\n",
        "tcgen05.mma.sp.cta_group::1.kind::f16 [%r0], %r8, %r9, [%r2], %r1, %p0;\n",
        "tcgen05.mma.cta_group::1.kind::mxf8f6f4 [%r0], %r8, %r9, %r1, [%r2], [%r3], %p0;\n",
        "tcgen05.ld.red.sync.aligned.32x32b.x1.min.u32 {%r0}, %r2, [%r3];\n",
        "tcgen05.ld.red.sync.aligned.16x32bx2.x2.min.u32 {%r0, %r1}, %r2, [%r3], 2;\n",
        "tcgen05.ld.sync.aligned.32x32b.x3.b32 {%r0, %r1, %r2}, [%r3];\n",
        "tcgen05.cp.cta_group::1.4x256b [%r0], %r8;\n",
        "cp.async.bulk.tensor.1d.shared::cta.global.tile::gather4.mbarrier::complete_tx::bytes [%r8], [%r9, {%r0}], [%r10];\n",
        "cp.async.bulk.tensor.2d.global.shared::cta.tile::scatter4.bulk_group [%r9, {%r0, %r1}], [%r8];\n",
        "clusterlaunchcontrol.try_cancel.b128 [%r8], [%r9];\n",
        "clusterlaunchcontrol.query_cancel.get_first_ctaid.b32.b128 %r0, %q0;\n",
        "fence.proxy.nonsense;\n",
        "atom.global.add.u32;\n",
        "red.global.add.u32 [%r8];\n",
    ] {
        let opcode = body.split(' ').next().unwrap_or(body);
        let error = load(body).unwrap_err();
        assert!(
            error.contains(opcode.trim_end_matches([';', '\n'])),
            "{error}"
        );
    }
}
