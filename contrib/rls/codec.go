package rls

import (
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/encoding"
	grpcproto "google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// ServerOption is an option that the gRPC server of a [Service] must have: with it a value may be
// any bytes.
//
// Envoy puts the bytes of a header into a descriptor as they are. gRPC refuses a message with a
// text that is no UTF-8, and a request whose call fails is let through. So without this option one
// byte in a header passes every limit.
func ServerOption() grpc.ServerOption {
	return grpc.ForceServerCodecV2(codec{encoding.GetCodecV2(grpcproto.Name)})
}

// codec is the codec of gRPC, but a RateLimitRequest may have texts that are no UTF-8. They stay as
// they are, because two values must not become one.
type codec struct{ encoding.CodecV2 }

func (c codec) Unmarshal(data mem.BufferSlice, v any) error {
	err := c.CodecV2.Unmarshal(data, v)
	if err == nil {
		return nil
	}
	r, ok := v.(*pb.RateLimitRequest)
	if !ok {
		return err
	}
	proto.Reset(r)
	if unmarshal(data.Materialize(), r.ProtoReflect()) != nil {
		return err
	}
	return nil
}

// unmarshal adds the fields of a message that has no map and no message within itself, as
// proto.Unmarshal does. It takes any bytes for a text.
func unmarshal(data []byte, m protoreflect.Message) error {
	for len(data) > 0 {
		number, kind, n := protowire.ConsumeTag(data)
		if n < 0 {
			return protowire.ParseError(n)
		}
		length := protowire.ConsumeFieldValue(number, kind, data[n:])
		if length < 0 {
			return protowire.ParseError(length)
		}
		field, value := data[:n+length], data[n:n+length]
		data = data[n+length:]
		f := m.Descriptor().Fields().ByNumber(number)
		if kind != protowire.BytesType || f == nil || f.Kind() != protoreflect.StringKind && f.Kind() != protoreflect.MessageKind {
			if err := (proto.UnmarshalOptions{Merge: true}).Unmarshal(field, m.Interface()); err != nil {
				return err
			}
			continue
		}
		value, _ = protowire.ConsumeBytes(value)
		switch {
		case f.Kind() == protoreflect.StringKind:
			m.Set(f, protoreflect.ValueOfString(string(value)))
		case f.IsList():
			if err := unmarshal(value, m.Mutable(f).List().AppendMutable().Message()); err != nil {
				return err
			}
		default:
			if err := unmarshal(value, m.Mutable(f).Message()); err != nil {
				return err
			}
		}
	}
	return nil
}
