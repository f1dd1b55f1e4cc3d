// Package auto learns which services are worth carrying, for rules with action auto:
// from what carried connections have moved, what that costs by carrier, and what
// native connections to the same service achieve. It decides by numbers it is given;
// connections and the steering are interfaces. The trap: a price is an estimate of
// what cannot win, so a verdict expires and is sampled again.
package auto
