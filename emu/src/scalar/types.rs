//! The types that registers, operands and instruction names carry.

macro_rules! types {
    ($($name:ident $text:literal $bits:literal),* $(,)?) => {
        /// Type of a register or operand (PTX ISA 5.2, and the packed and narrow formats of 5.2.3 on).
        #[allow(missing_docs)] // each variant is the PTX name, capitalised
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum Ty { $($name),* }

        impl Ty {
            /// Every type.
            pub const ALL: &'static [Ty] = &[$(Ty::$name),*];

            /// The type that PTX writes as `name`, without the dot.
            pub fn from_name(name: &str) -> Option<Ty> {
                match name { $($text => Some(Ty::$name),)* _ => None }
            }

            /// As PTX writes it, without the dot.
            pub fn name(self) -> &'static str {
                match self { $(Ty::$name => $text),* }
            }

            /// Width in bits as an operand holds it (a predicate has 1; six-bit floats take 8 each).
            pub const fn bits(self) -> u32 {
                match self { $(Ty::$name => $bits),* }
            }
        }
    };
}

types! {
    Pred "pred" 1,
    B8 "b8" 8, B16 "b16" 16, B32 "b32" 32, B64 "b64" 64, B128 "b128" 128,
    U2 "u2" 2, U4 "u4" 4, U8 "u8" 8, U16 "u16" 16, U32 "u32" 32, U64 "u64" 64,
    S2 "s2" 2, S4 "s4" 4, S8 "s8" 8, S16 "s16" 16, S32 "s32" 32, S64 "s64" 64,
    U16x2 "u16x2" 32, S16x2 "s16x2" 32,
    F16 "f16" 16, F16x2 "f16x2" 32, Bf16 "bf16" 16, Bf16x2 "bf16x2" 32,
    F32 "f32" 32, F32x2 "f32x2" 64, F64 "f64" 64, Tf32 "tf32" 32,
    E4m3 "e4m3" 8, E5m2 "e5m2" 8, Ue8m0 "ue8m0" 8, E2m1 "e2m1" 4, E2m3 "e2m3" 8, E3m2 "e3m2" 8,
    E4m3x2 "e4m3x2" 16, E5m2x2 "e5m2x2" 16, Ue8m0x2 "ue8m0x2" 16,
    E2m1x2 "e2m1x2" 8, E2m3x2 "e2m3x2" 16, E3m2x2 "e3m2x2" 16,
    E4m3x4 "e4m3x4" 32, E5m2x4 "e5m2x4" 32, E2m1x4 "e2m1x4" 16, E2m3x4 "e2m3x4" 32, E3m2x4 "e3m2x4" 32,
}

impl Ty {
    /// Floating point, packed or not.
    pub const fn is_float(self) -> bool {
        self as u8 >= Ty::F16 as u8
    }

    /// A signed integer, packed or not.
    pub const fn is_signed(self) -> bool {
        matches!(
            self,
            Ty::S2 | Ty::S4 | Ty::S8 | Ty::S16 | Ty::S32 | Ty::S64 | Ty::S16x2
        )
    }

    /// An untyped `.bN`.
    pub const fn is_bits(self) -> bool {
        matches!(self, Ty::B8 | Ty::B16 | Ty::B32 | Ty::B64 | Ty::B128)
    }

    /// The element of a packed type, or the type itself.
    pub const fn element(self) -> Ty {
        match self {
            Ty::U16x2 => Ty::U16,
            Ty::S16x2 => Ty::S16,
            Ty::F16x2 => Ty::F16,
            Ty::Bf16x2 => Ty::Bf16,
            Ty::F32x2 => Ty::F32,
            Ty::E4m3x2 | Ty::E4m3x4 => Ty::E4m3,
            Ty::E5m2x2 | Ty::E5m2x4 => Ty::E5m2,
            Ty::Ue8m0x2 => Ty::Ue8m0,
            Ty::E2m1x2 | Ty::E2m1x4 => Ty::E2m1,
            Ty::E2m3x2 | Ty::E2m3x4 => Ty::E2m3,
            Ty::E3m2x2 | Ty::E3m2x4 => Ty::E3m2,
            t => t,
        }
    }

    /// How many elements: 1, 2 or 4.
    pub const fn lanes(self) -> u32 {
        match self {
            Ty::E4m3x4 | Ty::E5m2x4 | Ty::E2m1x4 | Ty::E2m3x4 | Ty::E3m2x4 => 4,
            t if t.element() as u8 != t as u8 => 2,
            _ => 1,
        }
    }

    /// All ones in this type's width, capped at 64 bits.
    pub const fn mask(self) -> u64 {
        if self.bits() >= 64 {
            u64::MAX
        } else {
            (1 << self.bits()) - 1
        }
    }

    /// `value`, of this type, as a wider register receives it: signed integers sign-extended,
    /// all others zero-extended (PTX ISA 9.4.1 and 9.7.9.21: `cvt` and loads extend by the
    /// destination's *type*; the caller cuts to the register's width).
    pub const fn extend(self, value: u64) -> u64 {
        let value = value & self.mask();
        if self.is_signed() && self.lanes() == 1 {
            let up = 64 - self.bits();
            ((value << up) as i64 >> up) as u64
        } else {
            value
        }
    }
}
