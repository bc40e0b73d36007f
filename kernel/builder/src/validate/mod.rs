//! Whether PTX is fit to ship.
