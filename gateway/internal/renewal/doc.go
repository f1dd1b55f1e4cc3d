// Package renewal has another configuration take effect in a running gateway, or another
// program take the gateway's place ([Renewal]), remembers what came of the attempts
// ([Reloads]), and spaces those that fail ([Backoff]). The gateway decides what of a configuration it can take. The trap: the
// service manager hears of one reload at a time.
package renewal
