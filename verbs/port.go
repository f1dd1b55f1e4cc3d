package verbs

// PortState is the state of a port (enum ibv_port_state, same numbers).
type PortState uint8

// The states of a port that software devices know.
const (
	PortDown   PortState = 1
	PortActive PortState = 4
)

var portStateNames = [...]string{"", "DOWN", "INIT", "ARMED", "ACTIVE"}

// String returns the standard name of the state.
func (s PortState) String() string { return nameOf(portStateNames[:], int(s), "PORT") }

// PortAttr describes the only port of a device (struct ibv_port_attr). Its
// number is 1.
type PortAttr struct {
	State     PortState
	MaxMTU    MTU    // what the device can send
	ActiveMTU MTU    // what the network takes now
	GIDs      []GID  // by SGID index; none on a device without addresses (shm)
	UDPPort   uint16 // RoCEv2: where packets arrive; 0 on a device without UDP
}
