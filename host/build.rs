//! Embeds the kernels.

fn main() {
    let out = std::path::PathBuf::from(std::env::var_os("OUT_DIR").unwrap()).join("embedded.rs");
    std::fs::write(out, "static EMBEDDED: &[Embedded] = &[];\n").unwrap();
}
