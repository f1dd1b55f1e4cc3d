package socket_test

import (
	"context"
	"fmt"
	"log"
	"net/netip"

	"github.com/smcgw/smcgw/rsocket/socket"
	"github.com/smcgw/smcgw/verbs/soft"
)

// A datagram socket without devices reaches its peers over UDP.
func ExamplePacketListenConfig_ListenPacket() {
	var cfg socket.PacketListenConfig
	local := netip.MustParseAddrPort("127.0.0.1:0")
	server, err := cfg.ListenPacket(context.Background(), local)
	if err != nil {
		log.Fatal(err)
	}
	defer server.Close()
	client, err := cfg.ListenPacket(context.Background(), local)
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()

	if _, err := client.WriteTo([]byte("hello"), server.LocalAddr()); err != nil {
		log.Fatal(err)
	}
	buf := make([]byte, client.MaxPayload(local.Addr()))
	n, from, err := server.ReadFrom(buf)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%s, from the client: %v\n", buf[:n], from.String() == client.LocalAddr().String())
	// Output: hello, from the client: true
}

// With a device, datagrams go from queue pair to queue pair once both sides know each other's.
func ExamplePacketConn() {
	dev, err := soft.Open(soft.Config{Addrs: []netip.Addr{netip.MustParseAddr("192.0.2.1")}})
	if err != nil {
		log.Fatal(err)
	}
	defer dev.Close()
	stack, err := socket.NewStack(dev, socket.StackConfig{})
	if err != nil {
		log.Fatal(err)
	}
	defer stack.Close()
	cfg := socket.PacketListenConfig{Stacks: []*socket.Stack{stack}}
	conn, err := cfg.ListenPacket(context.Background(), netip.MustParseAddrPort("192.0.2.1:7174"))
	if err != nil {
		log.Fatal(err)
	}
	defer conn.Close()
	buf := make([]byte, 2048)
	for {
		n, from, err := conn.ReadFromUDPAddrPort(buf)
		if err != nil {
			log.Fatal(err)
		}
		if _, err := conn.WriteToUDPAddrPort(buf[:n], from); err != nil {
			log.Print(err)
		}
	}
}
